/* The replacements in one program with the sanitizers, called by several threads at random. */
#define _GNU_SOURCE
#include "gq.h"
#include "resolve.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void *gq_real_cuda[GQ_FUNCTION_COUNT];
int gq_cuda_found;
static void *driver, *context;
static pthread_barrier_t together;

#define REAL(type, name) ((int(*) type)dlsym(driver, name))

void gq_find_cuda(void) {
    static const char *const names[] = {
#define X(base, name, since, ptsz) #name,
        GQ_HOOKS(X)
#undef X
#define X(name) #name,
        GQ_CALLED(X)
#undef X
    };
    for (int at = 0; at < GQ_FUNCTION_COUNT; at++)
        __atomic_store_n(&gq_real_cuda[at], dlsym(driver, names[at]), __ATOMIC_RELAXED);
    __atomic_store_n(&gq_cuda_found, 1, __ATOMIC_RELEASE);
}

void *gq_real_nvml(int function) {
    (void)function;
    return NULL;
}

CUresult cuInit(unsigned);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr), cuArrayDestroy(CUarray);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuStreamSynchronize(CUstream);
CUresult cuArrayCreate_v2(CUarray *, const CUarray_descriptor *), cuMemRelease(CUhandle);
CUresult cuMemCreate(CUhandle *, size_t, const CUalloc_head *, unsigned long long);
CUresult cuMemGetInfo_v2(size_t *, size_t *), cuCtxDestroy_v2(CUcontext);

static void one(unsigned kind, unsigned *seed) {
    static const CUalloc_head there = {1, 0, {LOCATION_DEVICE, 0}};
    CUarray_descriptor flat = {256, 256, 0x20, 1};
    CUdeviceptr pointer;
    CUhandle handle;
    CUarray array;
    size_t bytes = (size_t)rand_r(seed) % (3 << 20) + 1, left, all;
    if (kind == 0 && !cuMemAlloc_v2(&pointer, bytes)) cuMemFree_v2(pointer);
    if (kind == 1 && !cuMemAllocAsync(&pointer, bytes, NULL)) cuMemFreeAsync(pointer, NULL);
    if (kind == 2 && !cuArrayCreate_v2(&array, &flat)) cuArrayDestroy(array);
    if (kind == 3 && !cuMemCreate(&handle, 2 << 20, &there, 0)) cuMemRelease(handle);
    if (kind == 4) cuStreamSynchronize(NULL);
    if (kind == 5 && cuMemGetInfo_v2(&left, &all)) abort();
}

static void *work(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    REAL((void *), "cuCtxSetCurrent")(context);
    pthread_barrier_wait(&together);
    for (int round = 0; round < 3000; round++) one((unsigned)rand_r(&seed) % 6, &seed);
    return NULL;
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuInit(0)) return 3;
    REAL((void **, unsigned, int), "cuCtxCreate_v2")(&context, 0, 0);
    pthread_barrier_init(&together, NULL, 4);
    pthread_t threads[4];
    for (uintptr_t at = 0; at < 4; at++) pthread_create(&threads[at], NULL, work, (void *)(at + 1));
    for (int at = 0; at < 4; at++) pthread_join(threads[at], NULL);
    CUdeviceptr pointer;
    for (int at = 0; at < 1000; at++) cuMemAlloc_v2(&pointer, 512);
    pid_t child = fork();
    if (child == 0) _exit(cuMemAlloc_v2(&pointer, 512));
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        printf("child %d ended with status %x, %m\n", (int)child, status);
    cuCtxDestroy_v2(context);
    cuStreamSynchronize(NULL);
    gq_ledger_sweep(gq_book());
    printf("%lu left\n", (unsigned long)gq_book()->gpu[0].used);
    return 0;
}
