/* Kernels of the driver without a GPU: a launch takes the time that its blocks would, on as many
 * multiprocessors as the process has; a block takes 100 us of one of them.
 */
#include <time.h>

static uint64_t launch_owed;

int cuModuleLoadData(void **module, const void *image) { *module = (void *)1; return strstr(image, ".entry") ? 0 : 218; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    *function = (void *)name;
    return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **words, void **extra) {
    (void)function, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)words, (void)extra;
    unsigned sms = MULTIPROCESSORS * mps_percent / 100;
    __atomic_add_fetch(&launch_owed, 100000ull * x / (sms ? sms : 1), __ATOMIC_SEQ_CST);
    return 0;
}
static void launch_wait(void) {
    uint64_t owed = __atomic_exchange_n(&launch_owed, 0, __ATOMIC_SEQ_CST);
    struct timespec time = {.tv_sec = owed / 1000000000, .tv_nsec = owed % 1000000000};
    if (owed) nanosleep(&time, NULL);
}
int cuMemsetD32_v2(uint64_t at, unsigned value, size_t count) { (void)at, (void)value, (void)count; return 0; }
