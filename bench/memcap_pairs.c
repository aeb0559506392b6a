/* Allocate-and-free pairs through the driver's functions, as CUDA's runtime would find them.
 * memcap_pairs THREADS LIVE PAIRS: prints CPU nanoseconds per pair, all threads together. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t u64;
static int (*get)(const char *, void **, int, u64, int *);
static int (*allocate)(u64 *, size_t), (*release)(u64), (*set_current)(void *);
static void *context;
static int pairs, live;
static pthread_barrier_t barrier;

static void *find(const char *name) {
    void *found = NULL;
    int status;
    if (get(name, &found, 12040, 0, &status) || !found) exit(3);
    return found;
}

static double cpu(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void *work(void *result) {
    u64 *held = malloc(sizeof *held * (live + 1)), pointer;
    set_current(context);
    for (int at = 0; at < live; at++)
        if (allocate(&held[at], 512)) exit(4);
    for (int at = 0; at < 1000; at++) /* warm */
        if (allocate(&pointer, 512) || release(pointer)) exit(5);
    pthread_barrier_wait(&barrier);
    double begin = cpu();
    for (int at = 0; at < pairs; at++) {
        /* the one that was made longest ago goes, so that all are touched in turn */
        u64 *oldest = &held[live ? at % live : 0];
        if (live && release(*oldest)) exit(6);
        if (allocate(oldest, 512)) exit(7);
        if (!live && release(*oldest)) exit(8);
    }
    *(double *)result = cpu() - begin;
    return NULL;
}

int main(int count, char **words) {
    int threads = atoi(words[1]);
    live = atoi(words[2]) / threads, pairs = atoi(words[3]) / threads;
    void *library = count == 4 ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) return 2;
    get = (int (*)(const char *, void **, int, u64, int *))dlsym(library, "cuGetProcAddress_v2");
    get = (int (*)(const char *, void **, int, u64, int *))find("cuGetProcAddress");
    ((int (*)(unsigned))find("cuInit"))(0);
    ((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, 0);
    set_current = (int (*)(void *))find("cuCtxSetCurrent");
    allocate = (int (*)(u64 *, size_t))find("cuMemAlloc");
    release = (int (*)(u64))find("cuMemFree");
    pthread_barrier_init(&barrier, NULL, threads);
    pthread_t running[64];
    double took[64], sum = 0;
    for (int at = 0; at < threads; at++) pthread_create(&running[at], NULL, work, &took[at]);
    for (int at = 0; at < threads; at++) pthread_join(running[at], NULL), sum += took[at];
    printf("%.2f\n", sum / ((double)pairs * threads));
    return 0;
}
