/* How programs come to call the replacements.
 *
 * A program linked to libcuda finds them by name, because this library is loaded first. All others,
 * those with CUDA's runtime among them (shared or static), ask dlsym for cuGetProcAddress and that
 * for everything else, so both are replaced. The real one is asked first and its answer is exchanged
 * only where it is the driver's own function of a name that is known here: an unknown version of a
 * function, or another library's function of the same name, is passed on as it is.
 */
#define _GNU_SOURCE
#include "resolve.h"
#include "gq.h"

#include <dlfcn.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

typedef void *(*dlsym_type)(void *, const char *);
typedef void *(*dlvsym_type)(void *, const char *, const char *);

/* ---- the real dlsym ---- */

static void *none(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

static void *cached(void **place, const char *name) {
    void *found = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (found == NULL) {
        found = gq_next_definition(name);
        if (found == NULL) found = (void *)none;
        __atomic_store_n(place, found, __ATOMIC_RELEASE);
    }
    return found;
}

HIDDEN void *gq_real_dlsym(void) {
    static void *place;
    return cached(&place, "dlsym");
}

HIDDEN void *gq_real_dlvsym(void) {
    static void *place;
    return cached(&place, "dlvsym");
}

/* ---- the driver's functions ---- */

#define X(base, name, since, ptsz) CUresult name();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
GQ_HOOKS(X)
#pragma GCC diagnostic pop
#undef X
GQ_EXPORT int nvmlDeviceGetMemoryInfo(), nvmlDeviceGetMemoryInfo_v2();

static const struct hook {
    const char *base, *name;
    void *function;
    int since, ptsz;
} hooks[GQ_HOOK_COUNT] = {
#define X(base, name, since, ptsz) {#base, #name, (void *)name, since, ptsz},
    GQ_HOOKS(X)
#undef X
};

static const char *const called[] = {
#define X(name) #name,
    GQ_CALLED(X)
#undef X
};

void *gq_real_cuda[GQ_FUNCTION_COUNT];
int gq_cuda_found;

/* Twice at once does no harm: both find the same. */
void gq_find_cuda(void) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    dlsym_type look_up = (dlsym_type)gq_real_dlsym();
    for (int at = 0; at < GQ_FUNCTION_COUNT && library != NULL; at++) {
        const char *name = at < GQ_HOOK_COUNT ? hooks[at].name : called[at - GQ_HOOK_COUNT];
        __atomic_store_n(&gq_real_cuda[at], look_up(library, name), __ATOMIC_RELAXED);
    }
    if (library != NULL) __atomic_store_n(&gq_cuda_found, 1, __ATOMIC_RELEASE);
    dlerror(); /* the program whose look-up this is may ask, and that one has succeeded */
}

void *gq_real_nvml(int function) {
    static void *real[GQ_NVML_COUNT];
    static int found;
    if (!__atomic_load_n(&found, __ATOMIC_ACQUIRE)) {
        void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
        dlsym_type look_up = (dlsym_type)gq_real_dlsym();
        static const char *const names[] = {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
                                            "nvmlDeviceGetUUID"};
        for (int at = 0; at < GQ_NVML_COUNT && library != NULL; at++)
            __atomic_store_n(&real[at], look_up(library, names[at]), __ATOMIC_RELAXED);
        if (library != NULL) __atomic_store_n(&found, 1, __ATOMIC_RELEASE);
        dlerror();
    }
    return __atomic_load_n(&real[function], __ATOMIC_RELAXED);
}

/* ---- exchanging ---- */

extern void *dlsym(void *, const char *), *dlvsym(void *, const char *, const char *);

static void *exchange(const char *name, void *found) {
    if (found == NULL) return NULL;
    if (name[0] == 'c' && name[1] == 'u') {
        for (int at = 0; at < GQ_HOOK_COUNT; at++)
            if (strcmp(hooks[at].name, name) == 0) return gq_real(at) == found ? hooks[at].function : found;
    } else if (strncmp(name, "hip", 3) == 0) {
        return gq_hip_exchange(name, found);
    } else if (strncmp(name, "nvmlDeviceGetMemoryInfo", 23) == 0) {
        int second = strcmp(name + 23, "_v2") == 0;
        if (name[23] != 0 && !second) return found;
        if (gq_real_nvml(second ? GQ_NVML_MEMORY_V2 : GQ_NVML_MEMORY) != found) return found;
        return second ? (void *)nvmlDeviceGetMemoryInfo_v2 : (void *)nvmlDeviceGetMemoryInfo;
    } else if (name[0] == 'd' && name[1] == 'l') {
        if (strcmp(name, "dlsym") == 0 && found == gq_real_dlsym()) return (void *)dlsym;
        if (strcmp(name, "dlvsym") == 0 && found == gq_real_dlvsym()) return (void *)dlvsym;
    }
    return found;
}

HIDDEN void *gq_dlsym(void *handle, const char *name) {
    void *found = ((dlsym_type)gq_real_dlsym())(handle, name);
    return name != NULL ? exchange(name, found) : found;
}

HIDDEN void *gq_dlvsym(void *handle, const char *name, const char *version) {
    void *found = ((dlvsym_type)gq_real_dlvsym())(handle, name, version);
    return name != NULL ? exchange(name, found) : found;
}

/* dlsym(RTLD_NEXT or RTLD_DEFAULT, ...) finds its caller by the return address, so there the real
 * one must be jumped to, as if this were not here. Both are written out because C promises no jump.
 */
#if defined(__x86_64__)
#define STUB(name)                                            \
    ".globl " #name "\n.type " #name ",@function\n" #name ":\n.cfi_startproc\n"         \
    "lea 1(%rdi), %rax\ncmp $1, %rax\nja gq_" #name "\n"                               \
    "push %rdi\n.cfi_adjust_cfa_offset 8\npush %rsi\n.cfi_adjust_cfa_offset 8\n"        \
    "push %rdx\n.cfi_adjust_cfa_offset 8\ncall gq_real_" #name "\n"                    \
    "pop %rdx\n.cfi_adjust_cfa_offset -8\npop %rsi\n.cfi_adjust_cfa_offset -8\n"        \
    "pop %rdi\n.cfi_adjust_cfa_offset -8\njmp *%rax\n.cfi_endproc\n.size " #name ", .-" #name "\n"
#elif defined(__aarch64__)
#define STUB(name)                                            \
    ".globl " #name "\n.type " #name ",%function\n" #name ":\n.cfi_startproc\n"         \
    "add x9, x0, #1\ncmp x9, #1\nb.hi gq_" #name "\n"                                  \
    "stp x29, x30, [sp, #-48]!\n.cfi_adjust_cfa_offset 48\n"                            \
    "stp x0, x1, [sp, #16]\nstr x2, [sp, #32]\nbl gq_real_" #name "\nmov x16, x0\n"    \
    "ldr x2, [sp, #32]\nldp x0, x1, [sp, #16]\n"                                       \
    "ldp x29, x30, [sp], #48\n.cfi_adjust_cfa_offset -48\nbr x16\n.cfi_endproc\n"       \
    ".size " #name ", .-" #name "\n"
#else
#error "the memory cap is written for x86-64 and aarch64"
#endif

__asm__(".text\n" STUB(dlsym) STUB(dlvsym));

/* ---- cuGetProcAddress ---- */

#define PER_THREAD 2

static void *driver_has(const char *base, int version, uint64_t flags) {
    void *found = NULL;
    int status;
    if (gq_real(GQ_cuGetProcAddress_cuGetProcAddress_v2_at) != NULL)
        GQ_CALL(GQ_cuGetProcAddress_cuGetProcAddress_v2_at,
                (const char *, void **, int, uint64_t, int *), base, &found, version, flags, &status);
    else
        GQ_CALL(GQ_cuGetProcAddress_cuGetProcAddress_at, (const char *, void **, int, uint64_t), base,
                &found, version, flags);
    return found;
}

static void *exchange_versioned(const char *base, void *found, int version, uint64_t flags) {
    int best = -1;
    for (int at = 0; at < GQ_HOOK_COUNT; at++) {
        if (strcmp(hooks[at].base, base) != 0) continue;
        void *real = gq_real(at);
        if (real == found) return hooks[at].function;
        if (real == NULL || version < hooks[at].since) continue;
        if (hooks[at].ptsz != 2 && hooks[at].ptsz != ((flags & PER_THREAD) != 0)) continue;
        if (best < 0 || hooks[at].since > hooks[best].since) best = at;
    }
    if (best < 0) return found;
    /* a driver whose two look-ups answer with different addresses: it is the version known here if
     * who asks for that very version is told the same */
    return driver_has(base, hooks[best].since, flags) == found ? hooks[best].function : found;
}

GQ_EXPORT CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    CUresult result = GQ_CALL(GQ_cuGetProcAddress_cuGetProcAddress_at,
                              (const char *, void **, int, uint64_t), name, found, version, flags);
    if (result == CUDA_SUCCESS && name != NULL && found != NULL && *found != NULL)
        *found = exchange_versioned(name, *found, version, flags);
    return result;
}

GQ_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                                       int *status) {
    CUresult result = GQ_CALL(GQ_cuGetProcAddress_cuGetProcAddress_v2_at,
                              (const char *, void **, int, uint64_t, int *), name, found, version,
                              flags, status);
    if (result == CUDA_SUCCESS && name != NULL && found != NULL && *found != NULL)
        *found = exchange_versioned(name, *found, version, flags);
    return result;
}
