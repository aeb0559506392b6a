/* A libamdhip64.so without a GPU, which keeps its own books: two devices, whose use and the most of
 * it are in the file FAKE_HIP_CARD for all processes. FAKE_HIP_FAIL names a function that fails.
 * A pool takes memory in steps of 8 MiB and keeps it until it is trimmed or waited for.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICES 2
#define TOTAL (4ull << 30)
#define STEP (8ull << 20)
#define MOST 4096

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2 };
enum { LINEAR = 1, ARRAY, POOLED, HANDLE };

struct card {
    uint64_t used[DEVICES], peak[DEVICES];
};
struct thing {
    uint64_t address, bytes;
    int kind, device, references;
};
struct pool {
    uint64_t reserved, used;
    int device, taken;
};

static struct card *card;
static struct thing things[MOST];
static struct pool pools[16] = {{.device = 0, .taken = 1}, {.device = 1, .taken = 1}};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current, last_error;

static int said(int result) {
    if (result != OK) last_error = result;
    return result;
}

static int fails(const char *name) {
    const char *wanted = getenv("FAKE_HIP_FAIL");
    return wanted != NULL && strcmp(wanted, name) == 0;
}

static struct card *books(void) {
    if (card == NULL) {
        int file = open(getenv("FAKE_HIP_CARD"), O_RDWR);
        card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    return card;
}

static int use(int device, uint64_t bytes) {
    struct card *on = books();
    uint64_t now = __atomic_add_fetch(&on->used[device], bytes, __ATOMIC_ACQ_REL);
    if (now > TOTAL) {
        __atomic_fetch_sub(&on->used[device], bytes, __ATOMIC_ACQ_REL);
        return OUT_OF_MEMORY;
    }
    uint64_t peak = __atomic_load_n(&on->peak[device], __ATOMIC_RELAXED);
    while (now > peak && !__atomic_compare_exchange_n(&on->peak[device], &peak, now, 0,
                                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {}
    return OK;
}

static void unuse(int device, uint64_t bytes) {
    __atomic_fetch_sub(&books()->used[device], bytes, __ATOMIC_ACQ_REL);
}

static struct thing *find(uint64_t address, int kind) {
    for (int at = 0; at < MOST; at++)
        if (things[at].address == address && address && things[at].kind == kind) return &things[at];
    return NULL;
}

/* Address of a new thing; addresses are given out again, the lowest first. */
static uint64_t make(int kind, int device, uint64_t bytes) {
    for (int at = 0; at < MOST; at++)
        if (things[at].address == 0) {
            things[at] = (struct thing){0x100000000ull + ((uint64_t)at << 20), bytes, kind, device, 1};
            return things[at].address;
        }
    abort();
}

static int take(const char *name, int kind, uint64_t bytes, void **made) {
    if (fails(name) || made == NULL) return said(INVALID);
    if (bytes == 0) return *made = NULL, OK;
    pthread_mutex_lock(&lock);
    int result = bytes > TOTAL ? OUT_OF_MEMORY : use(current, bytes);
    if (result == OK) *made = (void *)make(kind, current, bytes);
    pthread_mutex_unlock(&lock);
    return said(result);
}

static int give(const char *name, int kind, void *what) {
    if (fails(name)) return said(INVALID);
    if (what == NULL) return OK;
    pthread_mutex_lock(&lock);
    struct thing *found = find((uint64_t)what, kind);
    if (found) unuse(found->device, found->bytes), found->address = 0;
    pthread_mutex_unlock(&lock);
    return said(found ? OK : INVALID);
}

int hipInit(unsigned flags) { return (void)flags, OK; }
int hipGetLastError(void) { int was = last_error; last_error = OK; return was; }
int hipGetDevice(int *device) { return *device = current, OK; }
int hipSetDevice(int device) { return device < 0 || device >= DEVICES ? INVALID : (current = device, OK); }

int hipDeviceGetUuid(char *uuid, int device) {
    char text[17];
    if (device < 0 || device >= DEVICES) return INVALID;
    snprintf(text, sizeof text, "%016x", device + 0xa1);
    memcpy(uuid, text, 16);
    return OK;
}

int hipMalloc(void **made, size_t bytes) { return take("hipMalloc", LINEAR, bytes, made); }
int hipExtMallocWithFlags(void **made, size_t bytes, unsigned flags) {
    return (void)flags, take("hipExtMallocWithFlags", LINEAR, bytes, made);
}
int hipMallocManaged(void **made, size_t bytes, unsigned flags) {
    return (void)flags, take("hipMallocManaged", LINEAR, bytes, made);
}
int hipMallocPitch(void **made, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) & ~511ull; /* more than is reckoned with */
    return take("hipMallocPitch", LINEAR, *pitch * height, made);
}
int hipMemAllocPitch(void **made, size_t *pitch, size_t width, size_t height, unsigned element) {
    return (void)element, hipMallocPitch(made, pitch, width, height);
}
struct extent { size_t width, height, depth; };
struct pitched { void *pointer; size_t pitch, width, height; };
int hipMalloc3D(struct pitched *made, struct extent size) {
    made->width = size.width, made->height = size.height;
    return hipMallocPitch(&made->pointer, &made->pitch, size.width, size.height * size.depth);
}
int hipFree(void *what) {
    pthread_mutex_lock(&lock);
    struct thing *pooled = find((uint64_t)what, POOLED);
    if (pooled) pools[pooled->references].used -= pooled->bytes, pooled->address = 0;
    pthread_mutex_unlock(&lock);
    return pooled ? OK : give("hipFree", LINEAR, what);
}

int hipMallocArray(void **made, const int *bits, size_t width, size_t height, unsigned flags) {
    uint64_t all = (uint64_t)(bits[0] + bits[1] + bits[2] + bits[3]) / 8;
    return (void)flags, take("hipMallocArray", ARRAY, all * width * (height ? height : 1), made);
}
int hipMalloc3DArray(void **made, const int *bits, struct extent size, unsigned flags) {
    return hipMallocArray(made, bits, size.width, size.height * size.depth, flags);
}
struct flat { size_t width, height; int format; unsigned channels; };
int hipArrayCreate(void **made, const struct flat *wanted) {
    return take("hipArrayCreate", ARRAY, wanted->width * wanted->height * wanted->channels * 4, made);
}
int hipFreeArray(void *what) { return give("hipFreeArray", ARRAY, what); }
int hipArrayDestroy(void *what) { return give("hipArrayDestroy", ARRAY, what); }

/* ---- pools ---- */

int hipDeviceGetMemPool(void **pool, int device) { return *pool = &pools[device], OK; }
int hipStreamGetDevice(void *stream, int *device) { return *device = (int)((uintptr_t)stream & 1), OK; }
int hipStreamIsCapturing(void *stream, int *status) { return *status = (uintptr_t)stream == 0xca9, OK; }

int hipMallocFromPoolAsync(void **made, size_t bytes, struct pool *pool, void *stream) {
    (void)stream;
    if (fails("hipMallocFromPoolAsync")) return said(INVALID);
    pthread_mutex_lock(&lock);
    uint64_t missing = pool->used + bytes > pool->reserved ? pool->used + bytes - pool->reserved : 0;
    missing = (missing + STEP - 1) / STEP * STEP;
    int result = missing ? use(pool->device, missing) : OK;
    if (result == OK) {
        pool->reserved += missing, pool->used += bytes;
        *made = (void *)make(POOLED, pool->device, bytes);
        find((uint64_t)*made, POOLED)->references = (int)(pool - pools);
    }
    pthread_mutex_unlock(&lock);
    return said(result);
}
int hipMallocAsync(void **made, size_t bytes, void *stream) {
    int device = current;
    if ((uintptr_t)stream > 2) hipStreamGetDevice(stream, &device);
    return hipMallocFromPoolAsync(made, bytes, &pools[device], stream);
}
int hipFreeAsync(void *what, void *stream) { return (void)stream, hipFree(what); }
int hipMemPoolGetAttribute(struct pool *pool, int which, uint64_t *value) {
    if (fails("hipMemPoolGetAttribute") || (which != 5 && which != 7)) return INVALID;
    return *value = which == 5 ? pool->reserved : pool->used, OK;
}
int hipMemPoolTrimTo(struct pool *pool, size_t keep) {
    uint64_t left = pool->used > keep ? pool->used : keep;
    left = (left + STEP - 1) / STEP * STEP;
    if (left < pool->reserved) unuse(pool->device, pool->reserved - left), pool->reserved = left;
    return OK;
}
int hipMemPoolCreate(void **pool, const int *wanted) {
    for (int at = DEVICES; at < 16; at++)
        if (!pools[at].taken) {
            pools[at] = (struct pool){.device = wanted[3], .taken = 1};
            return *pool = &pools[at], OK;
        }
    return INVALID;
}
int hipMemPoolDestroy(struct pool *pool) {
    unuse(pool->device, pool->reserved);
    return *pool = (struct pool){0}, OK;
}
static int trimmed(void) {
    for (int at = 0; at < 16; at++)
        if (pools[at].taken) hipMemPoolTrimTo(&pools[at], 0);
    return OK;
}
int hipDeviceSynchronize(void) { return trimmed(); }
int hipStreamSynchronize(void *stream) { return (void)stream, trimmed(); }

/* ---- physical memory ---- */

int hipMemCreate(void **handle, size_t bytes, const int *wanted, unsigned long long flags) {
    (void)flags;
    int was = current;
    current = wanted[3];
    int result = take("hipMemCreate", HANDLE, bytes, handle);
    current = was;
    return result;
}
static int drop(struct thing *found) {
    if (found == NULL) return said(INVALID);
    if (--found->references == 0) unuse(found->device, found->bytes), found->address = 0;
    return OK;
}
int hipMemRelease(void *handle) {
    return fails("hipMemRelease") ? INVALID : drop(find((uint64_t)handle, HANDLE));
}
int hipMemMap(uint64_t address, size_t bytes, size_t offset, void *handle, unsigned long long flags) {
    (void)address, (void)bytes, (void)offset, (void)flags;
    struct thing *found = find((uint64_t)handle, HANDLE);
    return found ? (found->references++, OK) : INVALID;
}
int hipMemUnmap(uint64_t address, size_t bytes) {
    (void)bytes; /* the tests map at the handle's own number */
    return drop(find(address, HANDLE));
}
int hipMemRetainAllocationHandle(void **handle, void *address) {
    struct thing *found = find((uint64_t)address, HANDLE);
    return found ? (found->references++, *handle = address, OK) : INVALID;
}

/* ---- what it tells ---- */

int hipMemGetInfo(size_t *free, size_t *total) {
    return *free = TOTAL - books()->used[current], *total = TOTAL, OK;
}
int hipDeviceTotalMem(size_t *bytes, int device) { return (void)device, *bytes = TOTAL, OK; }
int hipGetDevicePropertiesR0600(char *made, int device) {
    memset(made, 0, 1472);
    hipDeviceGetUuid(made + 256, device);
    *(size_t *)(made + 288) = TOTAL;
    return OK;
}
int hipGetDevicePropertiesR0000(char *made, int device) {
    memset(made, 0, 792);
    return (void)device, *(size_t *)(made + 256) = TOTAL, OK;
}
int hipGetDeviceProperties(char *made, int device) { return hipGetDevicePropertiesR0000(made, device); }

int hipDeviceReset(void) {
    if (fails("hipDeviceReset")) return said(INVALID);
    for (int at = 0; at < MOST; at++)
        if (things[at].address && things[at].device == current) {
            if (things[at].kind != POOLED) unuse(current, things[at].bytes);
            things[at].address = 0;
        }
    for (int at = 0; at < 16; at++)
        if (pools[at].taken && pools[at].device == current)
            unuse(current, pools[at].reserved), pools[at].reserved = pools[at].used = 0;
    return OK;
}

int hipGetProcAddress(const char *name, void **found, int version, uint64_t flags, void *status) {
    (void)flags, (void)status;
    if (strcmp(name, "hipMalloc") == 0) return *found = (void *)hipMalloc, OK;
    if (strcmp(name, "hipFree") == 0) return *found = (void *)hipFree, OK;
    if (strcmp(name, "hipInit") == 0) return *found = (void *)hipInit, OK;
    if (strcmp(name, "hipGetDeviceProperties") == 0)
        return *found = version >= 600 ? (void *)hipGetDevicePropertiesR0600
                                       : (void *)hipGetDevicePropertiesR0000, OK;
    return INVALID;
}
