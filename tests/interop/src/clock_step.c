/* Preloaded into a gateway by clock.rs: the time of day is what the kernel says plus the first number of seconds in the
   file $CLOCK_STEP, as when somebody sets the clock; the monotonic clock is ahead by the second, as when time has passed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *step;

__attribute__((constructor)) static void find_step(void)
{
    const char *path = getenv("CLOCK_STEP");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *step, PROT_READ, MAP_SHARED, fd, 0);
    step = page == MAP_FAILED ? NULL : page;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, id, now);
    if (result == 0 && step && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += step[0];
    if (result == 0 && step && (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE))
        now->tv_sec += step[1];
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now = { 0, 0 };
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
