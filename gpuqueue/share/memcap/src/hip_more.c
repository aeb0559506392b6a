/* The rest of HIP (see hip.c): memory from pools, physical memory by handle, what a program is told,
 * what ends a device's memory, and HIP's own look-ups. pools.c and vmm.c have the ways of counting.
 */
#include "hip.h"

/* ---- pools ---- */

static int64_t tells(void *pool, int which) {
    uint64_t value = 0;
    if (CALL(hipMemPoolGetAttribute, (void *, int, void *), pool, which, &value) != HIP_SUCCESS) return -1;
    return (int64_t)value;
}

struct request {
    void **pointer;
    size_t bytes;
    void *pool; /* NULL: the device's */
    void *stream;
};

static hipError_t ask(const struct request *wanted) {
    if (wanted->pool != NULL)
        return CALL(hipMallocFromPoolAsync, (void **, size_t, void *, void *), wanted->pointer,
                    wanted->bytes, wanted->pool, wanted->stream);
    return CALL(hipMallocAsync, (void **, size_t, void *), wanted->pointer, wanted->bytes, wanted->stream);
}

/* The device of a stream; of a default stream it is the current one. */
static int device_of(void *stream) {
    int device = -1;
    if ((uintptr_t)stream <= 2 || CALL(hipStreamGetDevice, (void *, int *), stream, &device) != HIP_SUCCESS)
        gq_hip_current(&device);
    return device;
}

/* Of a pool that HIP does not tell about: charged as it is asked for. */
static hipError_t without_pool(struct gq_state *state, int gpu, int device, const struct request *wanted) {
    uint64_t units = gq_units(wanted->bytes);
    if (!gq_charge(state, gpu, units)) return gq_hip_refused();
    hipError_t result = ask(wanted);
    if (result != HIP_SUCCESS)
        gq_adjust(state, gpu, -(int64_t)units);
    else
        gq_note(state, gq_make(GQ_POINTER, (uint64_t)*wanted->pointer, units, gpu, (uint32_t)device + 1));
    return result;
}

static hipError_t allocate(const struct request *wanted) {
    struct gq_state *state = gq_open();
    if (state == NULL || wanted->bytes == 0) return ask(wanted);
    int device = device_of(wanted->stream), gpu = gq_hip_gpu(device), capturing = 0;
    CALL(hipStreamIsCapturing, (void *, int *), wanted->stream, &capturing);
    if (capturing) return ask(wanted); /* a node of a graph */
    void *pool = wanted->pool;
    if (pool == NULL && CALL(hipDeviceGetMemPool, (void **, int), &pool, device) != HIP_SUCCESS) pool = NULL;
    int place = pool == NULL ? -1 : gq_pool_place(state, pool, &gpu, tells);
    if (gpu < 0) return ask(wanted);
    if (place < 0 || tells(pool, POOL_RESERVED) < 0) return without_pool(state, gpu, device, wanted);
    uint64_t units = gq_units(wanted->bytes), ahead;
    if (!gq_pool_ahead(state, gpu, place, units, &ahead)) return gq_hip_refused();
    hipError_t result = ask(wanted);
    if (result != HIP_SUCCESS) {
        gq_adjust(state, gpu, -(int64_t)ahead);
        return result;
    }
    if (gq_pool_made(state, gpu, place, units, ahead, (uint64_t)*wanted->pointer)) return result;
    hipFreeAsync(*wanted->pointer, wanted->stream);
    gq_refuse(state, gpu, units);
    return gq_hip_refused();
}

GQ_EXPORT hipError_t hipMallocAsync(void **pointer, size_t bytes, void *stream) {
    struct request wanted = {pointer, bytes, NULL, stream};
    return allocate(&wanted);
}

GQ_EXPORT hipError_t hipMallocFromPoolAsync(void **pointer, size_t bytes, void *pool, void *stream) {
    struct request wanted = {pointer, bytes, pool, stream};
    return allocate(&wanted);
}

GQ_EXPORT hipError_t hipMemPoolCreate(void **pool, const CUalloc_head *wanted) {
    hipError_t result = CALL(hipMemPoolCreate, (void **, const CUalloc_head *), pool, wanted);
    struct gq_state *state = gq_open();
    if (result != HIP_SUCCESS || state == NULL) return result;
    int gpu = -1; /* a pool of host memory is noted as well, as one that is not counted */
    if (wanted->location.type == LOCATION_DEVICE) gpu = gq_hip_gpu(wanted->location.id);
    gq_pool_place(state, *pool, &gpu, tells);
    return result;
}

GQ_EXPORT hipError_t hipMemPoolDestroy(void *handle) {
    struct gq_state *state = gq_open();
    struct gq_pool *pool = state ? gq_pool_leave(state, handle) : NULL;
    hipError_t result = CALL(hipMemPoolDestroy, (void *), handle);
    if (pool != NULL) gq_pool_left(state, pool, handle, result == HIP_SUCCESS);
    return result;
}

GQ_EXPORT hipError_t hipMemPoolTrimTo(void *pool, size_t keep) {
    hipError_t result = CALL(hipMemPoolTrimTo, (void *, size_t), pool, keep);
    struct gq_state *state = gq_open();
    if (result == HIP_SUCCESS && state != NULL) gq_settle_pools(state);
    return result;
}

/* Synchronisations, at which a pool may give memory back: two loads, unless pools are used. */
static hipError_t synchronised(hipError_t result) {
    struct gq_state *state = gq_open();
    if (state != NULL && __atomic_load_n(&state->pools_open, __ATOMIC_RELAXED)) gq_settle_pools(state);
    return result;
}

GQ_EXPORT hipError_t hipDeviceSynchronize(void) {
    hipError_t (*wait)(void) = (hipError_t(*)(void))gq_real_hip(at_hipDeviceSynchronize);
    return synchronised(wait ? wait() : HIP_NOT_INITIALIZED);
}

GQ_EXPORT hipError_t hipStreamSynchronize(void *stream) {
    return synchronised(CALL(hipStreamSynchronize, (void *), stream));
}

GQ_EXPORT hipError_t hipStreamSynchronize_spt(void *stream) {
    return synchronised(CALL(hipStreamSynchronize_spt, (void *), stream));
}

GQ_EXPORT hipError_t hipEventSynchronize(void *event) {
    return synchronised(CALL(hipEventSynchronize, (void *), event));
}

/* ---- physical memory by handle ---- */

GQ_EXPORT hipError_t hipMemCreate(void **handle, size_t bytes, const CUalloc_head *wanted,
                                  unsigned long long flags) {
    struct gq_state *state = gq_open();
    int gpu = -1;
    if (state != NULL && wanted != NULL && bytes != 0 && wanted->location.type == LOCATION_DEVICE)
        gpu = gq_hip_gpu(wanted->location.id);
    uint64_t units = gq_units(bytes);
    if (gpu >= 0 && !gq_charge(state, gpu, units)) return gq_hip_refused();
    hipError_t result = CALL(hipMemCreate, (void **, size_t, const CUalloc_head *, unsigned long long),
                             handle, bytes, wanted, flags);
    if (gpu >= 0 && result == HIP_SUCCESS) gq_note(state, gq_make(GQ_HANDLE, (uint64_t)*handle, units, gpu, 1));
    if (gpu >= 0 && result != HIP_SUCCESS) gq_adjust(state, gpu, -(int64_t)units);
    return result;
}

GQ_EXPORT hipError_t hipMemRelease(void *handle) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    int left = state ? gq_handle_leave(state, (uint64_t)handle, &entry) : -1;
    hipError_t result = CALL(hipMemRelease, (void *), handle);
    if (left >= 0) gq_handle_left(state, (uint64_t)handle, left, &entry, result == HIP_SUCCESS);
    return result;
}

GQ_EXPORT hipError_t hipMemMap(void *address, size_t bytes, size_t offset, void *handle,
                               unsigned long long flags) {
    hipError_t result = CALL(hipMemMap, (void *, size_t, size_t, void *, unsigned long long), address,
                             bytes, offset, handle, flags);
    struct gq_state *state = gq_open();
    if (result == HIP_SUCCESS && state != NULL) gq_mapped(state, (uint64_t)address, bytes, (uint64_t)handle);
    return result;
}

GQ_EXPORT hipError_t hipMemUnmap(void *address, size_t bytes) {
    hipError_t result = CALL(hipMemUnmap, (void *, size_t), address, bytes);
    struct gq_state *state = gq_open();
    if (result == HIP_SUCCESS && state != NULL) gq_unmapped(state, (uint64_t)address, bytes);
    return result;
}

GQ_EXPORT hipError_t hipMemRetainAllocationHandle(void **handle, void *address) {
    hipError_t result = CALL(hipMemRetainAllocationHandle, (void **, void *), handle, address);
    struct gq_state *state = gq_open();
    if (result == HIP_SUCCESS && state != NULL) gq_handle_again(state, (uint64_t)*handle);
    return result;
}

GQ_EXPORT hipError_t hipMemImportFromShareableHandle(void **handle, void *shared, int type) {
    hipError_t result = CALL(hipMemImportFromShareableHandle, (void **, void *, int), handle, shared, type);
    struct gq_state *state = gq_open();
    /* of a handle of our own, that very handle may come back */
    if (result == HIP_SUCCESS && state != NULL) gq_handle_again(state, (uint64_t)*handle);
    return result;
}

/* ---- what a program is told: the cap is the card ---- */

GQ_EXPORT hipError_t hipMemGetInfo(size_t *free, size_t *total) {
    size_t real_free = 0, real_total = 0;
    hipError_t result = CALL(hipMemGetInfo, (size_t *, size_t *), &real_free, &real_total);
    if (result != HIP_SUCCESS) return result;
    struct gq_state *state = gq_open();
    int device, gpu = state ? gq_hip_current(&device) : -1;
    uint64_t room, limit;
    if (gpu >= 0) gq_settle_pools(state);
    if (gpu >= 0 && gq_room(gpu, &room, &limit)) {
        if (room < real_free) real_free = room;
        if (limit < real_total) real_total = limit;
    }
    if (free != NULL) *free = real_free;
    if (total != NULL) *total = real_total;
    return result;
}

/* The cap of a device in place of what it has, which is at `size`. */
static hipError_t told(hipError_t result, int device, size_t *size) {
    struct gq_state *state = gq_open();
    int gpu = result == HIP_SUCCESS && state ? gq_hip_gpu(device) : -1;
    uint64_t room, limit;
    if (gpu >= 0 && size != NULL && gq_room(gpu, &room, &limit) && limit < *size) *size = limit;
    return result;
}

static size_t *within(void *properties, int offset) {
    return properties ? (size_t *)((char *)properties + offset) : NULL;
}

GQ_EXPORT hipError_t hipDeviceTotalMem(size_t *bytes, int device) {
    return told(CALL(hipDeviceTotalMem, (size_t *, int), bytes, device), device, bytes);
}

GQ_EXPORT hipError_t hipGetDeviceProperties(void *made, int device) {
    return told(CALL(hipGetDeviceProperties, (void *, int), made, device), device,
                within(made, TOTAL_MEMORY_R0000));
}

GQ_EXPORT hipError_t hipGetDevicePropertiesR0000(void *made, int device) {
    return told(CALL(hipGetDevicePropertiesR0000, (void *, int), made, device), device,
                within(made, TOTAL_MEMORY_R0000));
}

GQ_EXPORT hipError_t hipGetDevicePropertiesR0600(void *made, int device) {
    return told(CALL(hipGetDevicePropertiesR0600, (void *, int), made, device), device,
                within(made, TOTAL_MEMORY_R0600));
}

/* ---- the end of all that a device has ---- */

GQ_EXPORT hipError_t hipDeviceReset(void) {
    struct gq_state *state = gq_open();
    int device = -1;
    if (state != NULL) gq_hip_current(&device);
    hipError_t (*reset)(void) = (hipError_t(*)(void))gq_real_hip(at_hipDeviceReset);
    hipError_t result = reset ? reset() : HIP_NOT_INITIALIZED;
    if (result != HIP_SUCCESS || state == NULL || device < 0) return result;
    struct gq_entry entry;
    uint64_t at = 0;
    unsigned shard = 0;
    while (gq_table_take_of(&state->table, (uint32_t)device + 1, &shard, &at, &entry))
        gq_adjust(state, gq_gpu_of(&entry), -gq_units_of(&entry));
    if (gq_hip_gpu(device) >= 0) gq_pools_reset(state, gq_hip_gpu(device));
    return result;
}

/* ---- HIP's own look-ups ---- */

GQ_EXPORT hipError_t hipGetProcAddress(const char *name, void **found, int version, uint64_t flags,
                                       void *status) {
    hipError_t result = CALL(hipGetProcAddress, (const char *, void **, int, uint64_t, void *), name,
                             found, version, flags, status);
    if (result == HIP_SUCCESS && found != NULL) *found = gq_hip_replacement(*found);
    return result;
}

GQ_EXPORT hipError_t hipGetDriverEntryPoint(const char *name, void **found, unsigned long long flags,
                                            void *status) {
    hipError_t result = CALL(hipGetDriverEntryPoint, (const char *, void **, unsigned long long, void *),
                             name, found, flags, status);
    if (result == HIP_SUCCESS && found != NULL) *found = gq_hip_replacement(*found);
    return result;
}
