/* A libnvidia-ml.so.1 with one card, of 64 GiB and 1 GiB in use. */
#include <stdio.h>

typedef struct { unsigned long long total, free, used; } v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } v2;

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(unsigned long)(index + 1);
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-00000000-0000-0000-0000-%012lx", (unsigned long)device);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, v1 *memory) {
    (void)device;
    *memory = (v1){64ull << 30, 63ull << 30, 1ull << 30};
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, v2 *memory) {
    (void)device;
    *memory = (v2){memory->version, 64ull << 30, 1 << 20, 63ull << 30, 1ull << 30};
    return 0;
}
