/* Counts the lock calls of Sealane's lanes, by caller. Preload it:
 *
 *   gcc -O2 -shared -fPIC -o count_locks.so count_locks.c -ldl
 *   LOCKS_OUT=out.txt LD_PRELOAD=./count_locks.so sealane respond ...
 *
 * Each line of the result: calls, function, offset of the caller in its file (for addr2line). Only threads named
 * lane-* are counted; run it with one lane, since the table itself is not locked. Rust's own mutexes never call
 * pthread and are invisible here: count_lock_instructions.py sees those.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define SLOTS 4096
static struct {
    void *caller;
    const char *function;
    uint64_t calls;
} table[SLOTS];

static __thread int in_lane = -1;

static int counted(void) {
    if (in_lane != 1) {
        /* A thread gets its name after it starts: ask again until it is a lane's. */
        char name[32] = {0};
        prctl(PR_GET_NAME, name);
        in_lane = strncmp(name, "lane-", 5) == 0;
    }
    return in_lane;
}

static void count(void *caller, const char *function) {
    if (!counted())
        return;
    size_t start = ((uintptr_t)caller >> 2) % SLOTS;
    for (int i = 0; i < SLOTS; i++) {
        size_t at = (start + i) % SLOTS;
        if (table[at].caller == caller && table[at].function == function) {
            table[at].calls++;
            return;
        }
        if (!table[at].caller) {
            table[at].caller = caller;
            table[at].function = function;
            table[at].calls = 1;
            return;
        }
    }
}

#define COUNTED(function, type)                                                                                        \
    int function(type *lock) {                                                                                         \
        static int (*real)(type *);                                                                                    \
        if (!real)                                                                                                     \
            real = (int (*)(type *))dlsym(RTLD_NEXT, #function);                                                       \
        count(__builtin_return_address(0), #function);                                                                 \
        return real(lock);                                                                                             \
    }
COUNTED(pthread_mutex_lock, pthread_mutex_t)
COUNTED(pthread_mutex_trylock, pthread_mutex_t)
COUNTED(pthread_rwlock_rdlock, pthread_rwlock_t)
COUNTED(pthread_rwlock_wrlock, pthread_rwlock_t)
COUNTED(pthread_rwlock_tryrdlock, pthread_rwlock_t)
COUNTED(pthread_rwlock_trywrlock, pthread_rwlock_t)

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("LOCKS_OUT");
    FILE *out = path ? fopen(path, "w") : stderr;
    if (!out)
        return;
    for (int i = 0; i < SLOTS; i++) {
        Dl_info info;
        if (table[i].caller && dladdr(table[i].caller, &info))
            fprintf(out, "%lu %s %lx\n", (unsigned long)table[i].calls, table[i].function,
                    (unsigned long)((uintptr_t)table[i].caller - (uintptr_t)info.dli_fbase));
    }
    if (path)
        fclose(out);
}
