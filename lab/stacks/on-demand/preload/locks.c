/* Counts a program's lock calls, and can replace its read-write locks by light ones.
 *
 * Preloaded by `sealane-lab locks` and by the counting of TLS stacks, which build it with the system's C compiler:
 *
 *   cc -O2 -shared -fPIC -o locks.so locks.c -ldl
 *
 *   SEALANE_LOCKS_DIR   folder for the counts, one file per thread (see `struct block`), written in place through a
 *                       shared mapping: they are there however the program ends, and while it runs.
 *   SEALANE_LOCKS_WAIT  count only after the program has called sealane_locks_begin(), as the workers do.
 *   SEALANE_LOCKS_LIGHT replace pthread_rwlock_* by a lock of one word and a futex, as HAProxy's
 *                       USE_PTHREAD_EMULATION does: what light locks would regain.
 *
 * A lock call is an acquisition, tried or waited for. Contended is one that was not free at once; the time until it
 * was is the time waited. What never calls pthread is invisible: Rust's and Go's own locks, and plain atomics.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- the file: read by lab/stacks/src/locks.rs, which knows these sizes ---- */

enum { SCOPES = 5, KINDS = 4, FRAMES = 10, LOCKS = 8192, OBJECTS = 64, PATH_BYTES = 192 };
enum { MUTEX, READ, WRITE, SPIN };

struct frame {
    uint64_t offset; /* in the object's file */
    uint64_t object; /* index in `objects`, or OBJECTS when unknown */
};

struct lock {
    uint64_t address;         /* of the lock; 0: this entry is free */
    uint64_t calls[SCOPES];   /* by scope */
    uint64_t contended[SCOPES];
    uint64_t waited[SCOPES];  /* nanoseconds */
    uint64_t kinds[KINDS];
    struct frame first[FRAMES]; /* who took it first, innermost caller first */
};

struct block {
    char magic[8];            /* "SEALOCK2" */
    uint64_t pid, tid;
    char name[16];            /* the thread's */
    uint64_t calls[SCOPES][KINDS];
    uint64_t contended[SCOPES][KINDS];
    uint64_t waited[SCOPES][KINDS];
    uint64_t overflow;        /* calls of locks for which no entry was left */
    uint64_t objects_used;
    char objects[OBJECTS][PATH_BYTES];
    struct lock locks[LOCKS];
};

/* ---- state ---- */

static const char *folder;
static int wait_for_begin;
static int light;
static int ready;

static __thread struct block *mine __attribute__((tls_model("initial-exec")));
static __thread int began __attribute__((tls_model("initial-exec")));
static __thread int scope __attribute__((tls_model("initial-exec")));
static __thread int inside __attribute__((tls_model("initial-exec")));

typedef int (*mutex_fn)(pthread_mutex_t *);
typedef int (*rwlock_fn)(pthread_rwlock_t *);
typedef int (*mutex_timed_fn)(pthread_mutex_t *, const struct timespec *);
typedef int (*rwlock_timed_fn)(pthread_rwlock_t *, const struct timespec *);
typedef int (*mutex_clock_fn)(pthread_mutex_t *, clockid_t, const struct timespec *);
typedef int (*rwlock_clock_fn)(pthread_rwlock_t *, clockid_t, const struct timespec *);
typedef int (*spin_fn)(pthread_spinlock_t *);

static mutex_fn real_mutex_lock, real_mutex_trylock;
static rwlock_fn real_rdlock, real_wrlock, real_tryrdlock, real_trywrlock, real_unlock;
static mutex_timed_fn real_mutex_timedlock;
static rwlock_timed_fn real_timedrdlock, real_timedwrlock;
static mutex_clock_fn real_mutex_clocklock;
static rwlock_clock_fn real_clockrdlock, real_clockwrlock;
static spin_fn real_spin_lock, real_spin_trylock;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Other libraries' constructors may take locks before ours has run. */
static void find_real(void) {
    real_mutex_trylock = (mutex_fn)real("pthread_mutex_trylock");
    real_mutex_timedlock = (mutex_timed_fn)real("pthread_mutex_timedlock");
    real_rdlock = (rwlock_fn)real("pthread_rwlock_rdlock");
    real_wrlock = (rwlock_fn)real("pthread_rwlock_wrlock");
    real_tryrdlock = (rwlock_fn)real("pthread_rwlock_tryrdlock");
    real_trywrlock = (rwlock_fn)real("pthread_rwlock_trywrlock");
    real_timedrdlock = (rwlock_timed_fn)real("pthread_rwlock_timedrdlock");
    real_timedwrlock = (rwlock_timed_fn)real("pthread_rwlock_timedwrlock");
    real_unlock = (rwlock_fn)real("pthread_rwlock_unlock");
    real_mutex_clocklock = (mutex_clock_fn)real("pthread_mutex_clocklock");
    real_clockrdlock = (rwlock_clock_fn)real("pthread_rwlock_clockrdlock");
    real_clockwrlock = (rwlock_clock_fn)real("pthread_rwlock_clockwrlock");
    real_spin_lock = (spin_fn)real("pthread_spin_lock");
    real_spin_trylock = (spin_fn)real("pthread_spin_trylock");
    /* Asked for last: it is what the wrappers look at. Light from the first call on, or one lock would be taken in
     * one way and released in the other. */
    light = getenv("SEALANE_LOCKS_LIGHT") != NULL;
    real_mutex_lock = (mutex_fn)real("pthread_mutex_lock");
}

#define FIND()                                                                                                         \
    if (__builtin_expect(!real_mutex_lock, 0))                                                                         \
    find_real()

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void after_fork(void) {
    /* The child's counts are its own: a new file, from 0. */
    mine = NULL;
}

__attribute__((constructor)) static void start(void) {
    FIND();
    folder = getenv("SEALANE_LOCKS_DIR");
    wait_for_begin = getenv("SEALANE_LOCKS_WAIT") != NULL;
    /* Loads what unwinding needs now, when nothing is locked. */
    void *frames[4];
    inside = 1;
    backtrace(frames, 4);
    inside = 0;
    pthread_atfork(NULL, NULL, after_fork);
    ready = folder != NULL;
}

static struct block *open_block(void) {
    char path[4096], name[16] = {0};
    long tid = syscall(SYS_gettid);
    int fd = -1;
    /* Thread numbers come again: never write into an ended thread's file. */
    for (int n = 0; n < 1000 && fd < 0; n++) {
        int len = snprintf(path, sizeof path, "%s/%ld-%ld-%d.locks", folder, (long)getpid(), tid, n);
        if (len < 0 || (size_t)len >= sizeof path)
            return NULL;
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return NULL;
    }
    if (fd < 0)
        return NULL;
    struct block *block = NULL;
    if (ftruncate(fd, sizeof *block) == 0) {
        block = mmap(NULL, sizeof *block, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (block == MAP_FAILED)
            block = NULL;
    }
    close(fd);
    if (!block)
        return NULL;
    prctl(PR_GET_NAME, name);
    memcpy(block->name, name, sizeof block->name);
    block->pid = (uint64_t)getpid();
    block->tid = (uint64_t)tid;
    memcpy(block->magic, "SEALOCK2", 8);
    return block;
}

static uint64_t object_of(struct block *block, const char *path) {
    size_t n = strlen(path);
    if (n >= PATH_BYTES)
        return OBJECTS;
    for (uint64_t i = 0; i < block->objects_used; i++)
        if (strcmp(block->objects[i], path) == 0)
            return i;
    if (block->objects_used == OBJECTS)
        return OBJECTS;
    memcpy(block->objects[block->objects_used], path, n + 1);
    return block->objects_used++;
}

/* Only for a lock's first call in a thread, so it may take its time. */
static __attribute__((noinline)) void remember_callers(struct block *block, struct lock *entry) {
    void *addresses[FRAMES + 3];
    int n = backtrace(addresses, FRAMES + 3);
    /* This function and the wrappers are of no interest: they are in this object. */
    Dl_info self;
    void *base = dladdr((void *)remember_callers, &self) ? self.dli_fbase : NULL;
    int at = 0;
    for (int i = 0; i < n && at < FRAMES; i++) {
        Dl_info info;
        if (!dladdr(addresses[i], &info) || !info.dli_fname) {
            entry->first[at++] = (struct frame){(uint64_t)(uintptr_t)addresses[i], OBJECTS};
            continue;
        }
        if (info.dli_fbase == base)
            continue;
        /* The call, not what comes after it. */
        uint64_t offset = (uint64_t)((uintptr_t)addresses[i] - (uintptr_t)info.dli_fbase) - 1;
        entry->first[at++] = (struct frame){offset, object_of(block, info.dli_fname)};
    }
    for (; at < FRAMES; at++)
        entry->first[at] = (struct frame){0, OBJECTS};
}

static struct lock *entry_of(struct block *block, const volatile void *address) {
    uint64_t key = (uint64_t)(uintptr_t)address;
    size_t at = (key >> 3) * 0x9e3779b97f4a7c15u >> 51; /* 13 bits: LOCKS */
    /* Not filled to the brim: searching would take long. */
    for (int i = 0; i < 64; i++, at = (at + 1) % LOCKS) {
        if (block->locks[at].address == key)
            return &block->locks[at];
        if (block->locks[at].address == 0) {
            block->locks[at].address = key;
            remember_callers(block, &block->locks[at]);
            return &block->locks[at];
        }
    }
    return NULL;
}

static __attribute__((noinline)) void count(const volatile void *address, int kind, int contended, uint64_t waited) {
    if (!ready || inside || (wait_for_begin && !began))
        return;
    inside = 1;
    int saved = errno;
    if (!mine)
        mine = open_block();
    struct block *block = mine;
    if (block) {
        int s = scope;
        block->calls[s][kind]++;
        block->contended[s][kind] += (uint64_t)contended;
        block->waited[s][kind] += waited;
        struct lock *entry = entry_of(block, address);
        if (entry) {
            entry->calls[s]++;
            entry->contended[s] += (uint64_t)contended;
            entry->waited[s] += waited;
            entry->kinds[kind]++;
        } else {
            block->overflow++;
        }
    }
    errno = saved;
    inside = 0;
}

/* ---- what the workers call ---- */

void sealane_locks_scope(int s) { scope = s >= 0 && s < SCOPES ? s : 0; }
void sealane_locks_begin(void) { began = 1; }

/* ---- the light read-write lock ----
 * Word 0: readers, or WRITER. Word 1: how many sleep. Both lie where glibc keeps its own counts, which are 0 in a lock
 * that was initialised by function or by value; a lock that processes share keeps its flag elsewhere, untouched. */

#define WRITER 0x80000000u
#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("yield")
#else
#define RELAX() ((void)0)
#endif

static _Atomic uint32_t *words(pthread_rwlock_t *lock) { return (_Atomic uint32_t *)(void *)lock; }

static void sleep_on(_Atomic uint32_t *word, uint32_t seen) { syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0); }

static int light_try_read(pthread_rwlock_t *lock) {
    _Atomic uint32_t *w = words(lock);
    uint32_t seen = atomic_load_explicit(w, memory_order_relaxed);
    while (!(seen & WRITER))
        if (atomic_compare_exchange_weak_explicit(w, &seen, seen + 1, memory_order_acquire, memory_order_relaxed))
            return 0;
    return EBUSY;
}

static int light_try_write(pthread_rwlock_t *lock) {
    uint32_t free_word = 0;
    return atomic_compare_exchange_strong_explicit(words(lock), &free_word, WRITER, memory_order_acquire,
                                                   memory_order_relaxed)
               ? 0
               : EBUSY;
}

static void light_wait(pthread_rwlock_t *lock, int (*try_it)(pthread_rwlock_t *), int writer) {
    _Atomic uint32_t *w = words(lock);
    for (int spins = 0; spins < 100; spins++) {
        if (try_it(lock) == 0)
            return;
        RELAX();
    }
    atomic_fetch_add(w + 1, 1);
    while (try_it(lock) != 0) {
        uint32_t seen = atomic_load(w);
        if (writer ? seen != 0 : (seen & WRITER) != 0)
            sleep_on(w, seen);
    }
    atomic_fetch_sub(w + 1, 1);
}

static int light_unlock(pthread_rwlock_t *lock) {
    _Atomic uint32_t *w = words(lock);
    if (atomic_load_explicit(w, memory_order_relaxed) == WRITER)
        atomic_store_explicit(w, 0, memory_order_seq_cst);
    else
        atomic_fetch_sub_explicit(w, 1, memory_order_seq_cst);
    if (atomic_load_explicit(w + 1, memory_order_seq_cst) != 0)
        syscall(SYS_futex, w, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    return 0;
}

/* ---- the wrappers ---- */

int pthread_mutex_lock(pthread_mutex_t *lock) {
    FIND();
    if (inside)
        return real_mutex_lock(lock);
    int got = real_mutex_trylock(lock);
    if (got != EBUSY) {
        count(lock, MUTEX, 0, 0);
        /* EINVAL, EOWNERDEAD and the like: let the real call say it. */
        return got == 0 || got == EOWNERDEAD ? got : real_mutex_lock(lock);
    }
    uint64_t from = now();
    got = real_mutex_lock(lock);
    count(lock, MUTEX, 1, now() - from);
    return got;
}

int pthread_mutex_trylock(pthread_mutex_t *lock) {
    FIND();
    int got = real_mutex_trylock(lock);
    if (!inside)
        count(lock, MUTEX, got == EBUSY, 0);
    return got;
}

int pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until) {
    FIND();
    uint64_t from = now();
    int got = real_mutex_trylock(lock);
    int contended = got == EBUSY;
    if (contended)
        got = real_mutex_timedlock(lock, until);
    if (!inside)
        count(lock, MUTEX, contended, contended ? now() - from : 0);
    return got;
}

/* C++'s timed locks wait by a clock. These came with glibc 2.30: where they are missing, nobody calls them. */
int pthread_mutex_clocklock(pthread_mutex_t *lock, clockid_t clock, const struct timespec *until) {
    FIND();
    uint64_t from = now();
    int got = real_mutex_trylock(lock);
    int contended = got == EBUSY;
    if (contended)
        got = real_mutex_clocklock(lock, clock, until);
    if (!inside)
        count(lock, MUTEX, contended, contended ? now() - from : 0);
    return got;
}

static int take(pthread_rwlock_t *lock, int kind, rwlock_fn try_it, rwlock_fn wait) {
    int got = try_it(lock);
    if (got != EBUSY) {
        count(lock, kind, 0, 0);
        return got == 0 ? 0 : wait(lock);
    }
    uint64_t from = now();
    got = wait(lock);
    count(lock, kind, 1, now() - from);
    return got;
}

static int light_rdlock(pthread_rwlock_t *lock) { return light_wait(lock, light_try_read, 0), 0; }
static int light_wrlock(pthread_rwlock_t *lock) { return light_wait(lock, light_try_write, 1), 0; }

int pthread_rwlock_rdlock(pthread_rwlock_t *lock) {
    FIND();
    return light ? take(lock, READ, light_try_read, light_rdlock) : take(lock, READ, real_tryrdlock, real_rdlock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t *lock) {
    FIND();
    return light ? take(lock, WRITE, light_try_write, light_wrlock) : take(lock, WRITE, real_trywrlock, real_wrlock);
}

int pthread_rwlock_tryrdlock(pthread_rwlock_t *lock) {
    FIND();
    int got = light ? light_try_read(lock) : real_tryrdlock(lock);
    count(lock, READ, got == EBUSY, 0);
    return got;
}

int pthread_rwlock_trywrlock(pthread_rwlock_t *lock) {
    FIND();
    int got = light ? light_try_write(lock) : real_trywrlock(lock);
    count(lock, WRITE, got == EBUSY, 0);
    return got;
}

/* With light locks there is no giving up: POSIX allows a lock that comes at once, and these come soon. */
int pthread_rwlock_timedrdlock(pthread_rwlock_t *lock, const struct timespec *until) {
    FIND();
    if (light)
        return take(lock, READ, light_try_read, light_rdlock);
    uint64_t from = now();
    int got = real_tryrdlock(lock), contended = got == EBUSY;
    if (contended)
        got = real_timedrdlock(lock, until);
    count(lock, READ, contended, contended ? now() - from : 0);
    return got;
}

int pthread_rwlock_timedwrlock(pthread_rwlock_t *lock, const struct timespec *until) {
    FIND();
    if (light)
        return take(lock, WRITE, light_try_write, light_wrlock);
    uint64_t from = now();
    int got = real_trywrlock(lock), contended = got == EBUSY;
    if (contended)
        got = real_timedwrlock(lock, until);
    count(lock, WRITE, contended, contended ? now() - from : 0);
    return got;
}

int pthread_rwlock_clockrdlock(pthread_rwlock_t *lock, clockid_t clock, const struct timespec *until) {
    FIND();
    if (light)
        return take(lock, READ, light_try_read, light_rdlock);
    uint64_t from = now();
    int got = real_tryrdlock(lock), contended = got == EBUSY;
    if (contended)
        got = real_clockrdlock(lock, clock, until);
    count(lock, READ, contended, contended ? now() - from : 0);
    return got;
}

int pthread_rwlock_clockwrlock(pthread_rwlock_t *lock, clockid_t clock, const struct timespec *until) {
    FIND();
    if (light)
        return take(lock, WRITE, light_try_write, light_wrlock);
    uint64_t from = now();
    int got = real_trywrlock(lock), contended = got == EBUSY;
    if (contended)
        got = real_clockwrlock(lock, clock, until);
    count(lock, WRITE, contended, contended ? now() - from : 0);
    return got;
}

int pthread_rwlock_unlock(pthread_rwlock_t *lock) {
    FIND();
    return light ? light_unlock(lock) : real_unlock(lock);
}

int pthread_spin_lock(pthread_spinlock_t *lock) {
    FIND();
    if (real_spin_trylock(lock) == 0) {
        count(lock, SPIN, 0, 0);
        return 0;
    }
    uint64_t from = now();
    int got = real_spin_lock(lock);
    count(lock, SPIN, 1, now() - from);
    return got;
}
