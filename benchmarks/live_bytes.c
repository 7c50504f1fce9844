/* Bytes of OneFlow 0.9's live tensors, and of all else of a page of them or more, such as buffers.

   Loaded before all else (LD_PRELOAD), this stands in front of malloc and of the allocator that
   shares out blocks among tensors; what that takes for blocks does not count. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

#define LARGE 65536 /* bytes: Python's own objects are smaller */
#define UNIT 512    /* OneFlow rounds tensors up to it */
#define ALLOCATE "_ZN7oneflow2vm12BinAllocatorINS0_14ThreadSafeLockEE8AllocateEPPcm"
#define DEALLOCATE "_ZN7oneflow2vm12BinAllocatorINS0_14ThreadSafeLockEE10DeallocateEPcm"

static _Atomic long now, most;
static __thread int in_blocks;

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void change(long bytes) {
    long after = atomic_fetch_add(&now, bytes) + bytes, seen = atomic_load(&most);
    while (after > seen && !atomic_compare_exchange_weak(&most, &seen, after)) {}
}

static long counted(void *p) {
    size_t n = p && !in_blocks ? malloc_usable_size(p) : 0;
    return n < LARGE ? 0 : (long)n;
}

static void *made(void *p) {
    long n = counted(p);
    if (n) change(n);
    return p;
}

static void gone(void *p) {
    long n = counted(p);
    if (n) change(-n);
}

static long rounded(size_t n) { return (long)((n + UNIT - 1) / UNIT * UNIT); }

/* What stands in the caller's own library under a name. */
static void *own(void *caller, const char *name) {
    Dl_info library;
    dladdr(caller, &library);
    return dlsym(dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD), name);
}

long live_now(void) { return now; }
long live_most(void) { return most; }
void live_restart(void) { most = now; }

void *malloc(size_t n) { return made(__libc_malloc(n)); }
void *calloc(size_t count, size_t n) { return made(__libc_calloc(count, n)); }
void *memalign(size_t unit, size_t n) { return made(__libc_memalign(unit, n)); }
void *aligned_alloc(size_t unit, size_t n) { return memalign(unit, n); }

int posix_memalign(void **p, size_t unit, size_t n) {
    *p = memalign(unit, n);
    return *p ? 0 : ENOMEM;
}

void *realloc(void *p, size_t n) {
    gone(p);
    return made(__libc_realloc(p, n));
}

void free(void *p) {
    gone(p);
    __libc_free(p);
}

/* A Maybe<void> is returned where `result` points. */
void *allocate(void *result, void *self, char **p, size_t n) __asm__(ALLOCATE);
void *allocate(void *result, void *self, char **p, size_t n) {
    static void *(*next)(void *, void *, char **, size_t);
    if (!next) next = own(__builtin_return_address(0), ALLOCATE);
    in_blocks++;
    next(result, self, p, n);
    in_blocks--;
    change(rounded(n));
    return result;
}

void deallocate(void *self, char *p, size_t n) __asm__(DEALLOCATE);
void deallocate(void *self, char *p, size_t n) {
    static void (*next)(void *, char *, size_t);
    if (!next) next = own(__builtin_return_address(0), DEALLOCATE);
    in_blocks++;
    next(self, p, n);
    in_blocks--;
    if (p) change(-rounded(n));
}
