/* Samples which code a worker runs: the instructions themselves, since distributions strip the names of assembly.
 *
 *   SEALANE_PATHS_FILE  where the samples go, written in place through a shared mapping.
 *
 * A timer of the process's own CPU time interrupts it; while the server is at work (the workers say so, see
 * `workers/frame/src/scope.rs`) the next bytes of code are kept. No `perf`, no leave and no debugger is needed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

/* ---- the file: read by lab/stacks/src/paths.rs, which knows these sizes ---- */

enum { SAMPLES = 4096, CODE = 120 };

struct sample {
    uint64_t bytes; /* how many of `code` are there */
    unsigned char code[CODE];
};

struct file {
    char magic[8]; /* "SEAPATH1" */
    _Atomic uint64_t used;
    struct sample samples[SAMPLES];
};

static struct file *file;
static __thread int scope __attribute__((tls_model("initial-exec")));
static __thread int began __attribute__((tls_model("initial-exec")));

/* What the workers call. */
void sealane_locks_scope(int s) { scope = s; }
void sealane_locks_begin(void) { began = 1; }

static void take(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    /* The server's handshake and its data: `Scope` in scope.rs. */
    if (!file || !began || (scope != 2 && scope != 4))
        return;
    const ucontext_t *at = context;
#if defined(__x86_64__)
    uintptr_t pc = (uintptr_t)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    uintptr_t pc = (uintptr_t)at->uc_mcontext.pc;
#else
    uintptr_t pc = 0;
    (void)at;
#endif
    uint64_t n = atomic_fetch_add(&file->used, 1);
    if (pc == 0 || n >= SAMPLES)
        return;
    /* What follows on the same page is there for sure. */
    uint64_t left = 4096 - (pc & 4095);
    struct sample *sample = &file->samples[n];
    sample->bytes = left < CODE ? left : CODE;
    memcpy(sample->code, (const void *)pc, sample->bytes);
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SEALANE_PATHS_FILE");
    if (!path)
        return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    void *map = MAP_FAILED;
    if (ftruncate(fd, sizeof(struct file)) == 0)
        map = mmap(NULL, sizeof(struct file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return;
    file = map;
    memcpy(file->magic, "SEAPATH1", 8);
    struct sigaction action = {.sa_sigaction = take, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGVTALRM, &action, NULL);
    /* As often as the kernel's clock ticks. */
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_VIRTUAL, &often, NULL);
}
