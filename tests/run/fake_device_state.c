/* A libcuda.so.1 for the trial of moving GPU memory: what it holds is in the file of pretend
 * processes, and the functions that move it are the program that FAKE_CHECKPOINT names. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = malloc(1); return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuCtxSynchronize(void) { return 0; }

int cuMemAlloc_v2(uint64_t *at, size_t size) {
    const char *path = getenv("GPUQUEUE_FAKE_PROCS"), *gpu = getenv("CUDA_VISIBLE_DEVICES");
    *at = (uint64_t)(uintptr_t)malloc(size);
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%d:%s:%zu\n", getpid(), gpu, size >> 20);
        fclose(file);
    }
    return 0;
}
int cuMemsetD32_v2(uint64_t at, unsigned word, size_t count) {
    unsigned *to = (unsigned *)(uintptr_t)at;
    for (size_t i = 0; i < count; i++) to[i] = word;
    return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, (void *)(uintptr_t)from, size);
    if (getenv("FAKE_SPOILS")) ((char *)to)[size / 2] ^= 1;
    return 0;
}

static int act(const char *what, int pid, unsigned *arguments) {
    char line[512];
    snprintf(line, sizeof line, "\"$FAKE_CHECKPOINT\" --action %s --pid %d --timeout %u", what, pid, *arguments);
    return system(line) ? 999 : 0;
}
int cuCheckpointProcessLock(int pid, unsigned *arguments) { return act("lock", pid, arguments); }
int cuCheckpointProcessCheckpoint(int pid, unsigned *arguments) { return act("checkpoint", pid, arguments); }
int cuCheckpointProcessRestore(int pid, unsigned *arguments) { return act("restore", pid, arguments); }
int cuCheckpointProcessUnlock(int pid, unsigned *arguments) { return act("unlock", pid, arguments); }
int cuCheckpointProcessGetState(int pid, int *state) {
    static const char *names[] = {"running", "locked", "checkpointed", "failed"};
    char line[512], word[64] = "";
    snprintf(line, sizeof line, "\"$FAKE_CHECKPOINT\" --get-state --pid %d", pid);
    FILE *pipe = popen(line, "r");
    if (!pipe || fscanf(pipe, "%63s", word) != 1 || pclose(pipe)) return 999;
    for (*state = 0; *state < 4; ++*state)
        if (!strcmp(names[*state], word)) return 0;
    return 999;
}
int cuGetErrorString(int error, const char **text) { *text = error == 999 ? "unknown error" : NULL; return error != 999; }
