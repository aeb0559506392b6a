/* Memory from pools (cuMemAllocAsync). A pool takes memory from the GPU in steps and keeps what is
 * freed, so summing up what was asked for would tell too little. Charged is what the driver says
 * that a pool has reserved. It is asked after each allocation, after a trim, at a refusal, and at
 * synchronisations as long as a pool holds memory that is free: there the driver may give it back.
 */
#include "gq.h"

#define GONE ((void *)1) /* handle of a pool that was destroyed while it had allocations */

/* Bytes of an attribute, -1 where the driver does not tell. */
static int64_t cuda_tells(void *pool, int which) {
    uint64_t value = 0;
    if (GQ_CALL(GQ_cuMemPoolGetAttribute, (void *, int, void *), pool, which, &value) != CUDA_SUCCESS)
        return -1;
    return (int64_t)value;
}

/* The pool's place; a new one where there is none. -1: no more places. The lock is held. */
static int place_of(struct gq_state *state, void *pool, int gpu, int64_t (*tells)(void *, int)) {
    int empty = -1;
    for (uint32_t at = 0; at < state->pool_count; at++) {
        if (state->pools[at].handle == pool) return (int)at;
        if (state->pools[at].handle == NULL) empty = (int)at;
    }
    if (empty < 0 && state->pool_count < GQ_MAX_POOLS) {
        empty = (int)state->pool_count;
        __atomic_store_n(&state->pool_count, state->pool_count + 1, __ATOMIC_RELAXED);
    }
    if (empty >= 0)
        state->pools[empty] = (struct gq_pool){.handle = pool, .gpu = (uint8_t)(gpu + 1), .tells = tells};
    return empty;
}

int gq_pool_place(struct gq_state *state, void *pool, int *gpu, int64_t (*tells)(void *, int)) {
    gq_lock(&state->pool_lock);
    int place = place_of(state, pool, *gpu, tells);
    if (place >= 0) *gpu = state->pools[place].gpu - 1; /* a pool knows its GPU */
    gq_unlock(&state->pool_lock);
    return place;
}

/* Bring a pool's charge to what it holds; the lock is held. Returns what to add to the ledger. */
static int64_t settle(struct gq_state *state, struct gq_pool *pool) {
    if (pool->handle == NULL || pool->gpu == 0) return 0;
    int64_t reserved = pool->gone ? -1 : pool->tells(pool->handle, POOL_RESERVED);
    uint64_t holds = reserved < 0 ? pool->live : (uint64_t)reserved >> GQ_UNIT_SHIFT;
    int64_t more = (int64_t)(holds - pool->charged);
    pool->charged = holds;
    if (reserved > 0 && pool->tells(pool->handle, POOL_USED) < reserved)
        __atomic_store_n(&state->pools_open, 1, __ATOMIC_RELAXED);
    return more;
}

void gq_settle_pools(struct gq_state *state) {
    if (__atomic_load_n(&state->pool_count, __ATOMIC_RELAXED) == 0) return;
    gq_lock(&state->pool_lock);
    __atomic_store_n(&state->pools_open, 0, __ATOMIC_RELAXED);
    for (uint32_t at = 0; at < state->pool_count; at++) {
        struct gq_pool *pool = &state->pools[at];
        int64_t more = settle(state, pool);
        if (more != 0) gq_adjust(state, pool->gpu - 1, more);
    }
    gq_unlock(&state->pool_lock);
}

void gq_pool_freed(struct gq_state *state, const struct gq_entry *entry) {
    gq_lock(&state->pool_lock);
    struct gq_pool *pool = &state->pools[gq_tag_of(entry)];
    pool->live -= (uint64_t)gq_units_of(entry);
    if (pool->gone) {
        gq_adjust(state, gq_gpu_of(entry), settle(state, pool));
        if (pool->live == 0) pool->handle = NULL;
    } else {
        __atomic_store_n(&state->pools_open, 1, __ATOMIC_RELAXED);
    }
    gq_unlock(&state->pool_lock);
}

/* Charge ahead of an allocation. Returns 0 where it is refused. A pool may serve it from what it
 * has reserved and that is charged already; then *ahead is 0. */
int gq_pool_ahead(struct gq_state *state, int gpu, int place, uint64_t units, uint64_t *ahead) {
    const struct gq_pool *pool = &state->pools[place];
    *ahead = units;
    if (gq_try_charge(state, gpu, units)) return 1;
    gq_ledger_sweep(gq_book());
    gq_settle_pools(state);
    if (gq_try_charge(state, gpu, units)) return 1;
    *ahead = 0;
    int64_t reserved = pool->tells(pool->handle, POOL_RESERVED);
    int64_t used = pool->tells(pool->handle, POOL_USED);
    if (reserved >= 0 && used >= 0 && (uint64_t)(reserved - used) >> GQ_UNIT_SHIFT >= units) return 1;
    gq_refuse(state, gpu, units);
    return 0;
}

static int over(int gpu) {
    uint64_t room, limit;
    const struct gq_gpu *entry = &gq_book()->gpu[gpu];
    return gq_room(gpu, &room, &limit) &&
           __atomic_load_n(&entry->used, __ATOMIC_RELAXED) > limit >> GQ_UNIT_SHIFT;
}

/* Note an allocation that was made, and charge what the pool took for it. Returns 0 where the pool
 * took so much that the job is over its cap. */
int gq_pool_made(struct gq_state *state, int gpu, int place, uint64_t units, uint64_t ahead,
                 uint64_t pointer) {
    gq_lock(&state->pool_lock);
    struct gq_pool *pool = &state->pools[place];
    pool->live += units;
    int64_t more = settle(state, pool) - (int64_t)ahead;
    gq_adjust(state, gpu, more);
    gq_unlock(&state->pool_lock);
    gq_note(state, gq_make(GQ_ASYNC, pointer, units, gpu, (uint32_t)place));
    return more <= 0 || !over(gpu);
}

struct request {
    int from_pool, ptsz;
    CUdeviceptr *pointer;
    size_t bytes;
    CUpool pool;
    CUstream stream;
};

static CUresult ask(const struct request *wanted) {
    if (wanted->from_pool)
        return GQ_CALL(wanted->ptsz ? GQ_cuMemAllocFromPoolAsync_cuMemAllocFromPoolAsync_ptsz_at
                                    : GQ_cuMemAllocFromPoolAsync_cuMemAllocFromPoolAsync_at,
                       (CUdeviceptr *, size_t, CUpool, CUstream), wanted->pointer, wanted->bytes,
                       wanted->pool, wanted->stream);
    return GQ_CALL(wanted->ptsz ? GQ_cuMemAllocAsync_cuMemAllocAsync_ptsz_at
                                : GQ_cuMemAllocAsync_cuMemAllocAsync_at,
                   (CUdeviceptr *, size_t, CUstream), wanted->pointer, wanted->bytes, wanted->stream);
}

/* The pool that it will come from and the GPU to charge; -1 where it is not counted. */
static int find_pool(struct gq_state *state, const struct request *wanted, void **pool, int *place) {
    CUdevice device;
    int gpu = gq_gpu_of_stream(state, wanted->stream, &device);
    *pool = wanted->pool;
    if (!wanted->from_pool && (gpu < 0 || GQ_CALL(GQ_cuDeviceGetMemPool, (void **, CUdevice), pool,
                                                  device) != CUDA_SUCCESS))
        *pool = NULL;
    *place = *pool == NULL ? -1 : gq_pool_place(state, *pool, &gpu, cuda_tells);
    return gpu;
}

/* Memory of a pool that the driver does not tell about is charged as it is asked for. */
static CUresult without_pool(struct gq_state *state, int gpu, const struct request *wanted) {
    uint64_t units = gq_units(wanted->bytes);
    if (!gq_charge(state, gpu, units)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ask(wanted);
    if (result != CUDA_SUCCESS) {
        gq_adjust(state, gpu, -(int64_t)units);
        return result;
    }
    gq_note(state, gq_make(GQ_POINTER, *wanted->pointer, units, gpu, 0));
    return result;
}

static CUresult allocate(const struct request *wanted) {
    struct gq_state *state = gq_open();
    if (state == NULL || wanted->bytes == 0) return ask(wanted);
    void *pool;
    int place, gpu = find_pool(state, wanted, &pool, &place), capturing = 0;
    if (gpu < 0) return ask(wanted);
    GQ_CALL(GQ_cuStreamIsCapturing, (CUstream, int *), wanted->stream, &capturing);
    if (capturing) return ask(wanted); /* a node of a graph, which is charged when it is launched */
    if (place < 0) return without_pool(state, gpu, wanted);
    uint64_t units = gq_units(wanted->bytes), ahead;
    if (!gq_pool_ahead(state, gpu, place, units, &ahead)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ask(wanted);
    if (result != CUDA_SUCCESS) {
        gq_adjust(state, gpu, -(int64_t)ahead);
        return result;
    }
    if (gq_pool_made(state, gpu, place, units, ahead, *wanted->pointer)) return result;
    /* the pool's step was larger than the room: it stays with the pool, charged, until it is
     * trimmed, and the program is told the truth */
    (wanted->ptsz ? cuMemFreeAsync_ptsz : cuMemFreeAsync)(*wanted->pointer, wanted->stream);
    gq_refuse(state, gpu, units);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

GQ_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct request wanted = {0, 0, pointer, bytes, NULL, stream};
    return allocate(&wanted);
}

GQ_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct request wanted = {0, 1, pointer, bytes, NULL, stream};
    return allocate(&wanted);
}

GQ_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUpool pool,
                                           CUstream stream) {
    struct request wanted = {1, 0, pointer, bytes, pool, stream};
    return allocate(&wanted);
}

GQ_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUpool pool,
                                                CUstream stream) {
    struct request wanted = {1, 1, pointer, bytes, pool, stream};
    return allocate(&wanted);
}

GQ_EXPORT CUresult cuMemPoolCreate(CUpool *pool, const CUalloc_head *wanted) {
    CUresult result = GQ_CALL(GQ_cuMemPoolCreate_cuMemPoolCreate_at, (CUpool *, const CUalloc_head *),
                              pool, wanted);
    struct gq_state *state = gq_open();
    if (result != CUDA_SUCCESS || state == NULL) return result;
    int gpu = -1; /* a pool of host memory is noted as well, as one that is not counted */
    if (wanted->location.type == LOCATION_DEVICE) gpu = gq_gpu_of_device(state, wanted->location.id);
    if (wanted->location.type == LOCATION_DEVICE_PART)
        gpu = gq_gpu_of_device(state, wanted->location.id & 0xff);
    gq_pool_place(state, *pool, &gpu, cuda_tells);
    return result;
}

struct gq_pool *gq_pool_leave(struct gq_state *state, void *handle) {
    struct gq_pool *pool = NULL;
    gq_lock(&state->pool_lock);
    for (uint32_t at = 0; at < state->pool_count && pool == NULL; at++)
        if (state->pools[at].handle == handle && handle != NULL) pool = &state->pools[at];
    /* marked first: afterwards the same handle may be another's */
    if (pool != NULL) {
        pool->handle = GONE;
        pool->gone = 1;
    }
    gq_unlock(&state->pool_lock);
    return pool;
}

void gq_pool_left(struct gq_state *state, struct gq_pool *pool, void *handle, int destroyed) {
    gq_lock(&state->pool_lock);
    if (destroyed) {
        gq_adjust(state, pool->gpu - 1, settle(state, pool));
        if (pool->live == 0) pool->handle = NULL;
    } else {
        pool->handle = handle;
        pool->gone = 0;
    }
    gq_unlock(&state->pool_lock);
}

void gq_pools_reset(struct gq_state *state, int gpu) {
    gq_lock(&state->pool_lock);
    for (uint32_t at = 0; at < state->pool_count; at++) {
        struct gq_pool *pool = &state->pools[at];
        if (pool->handle == NULL || pool->gpu != gpu + 1) continue;
        gq_adjust(state, gpu, -(int64_t)pool->charged);
        *pool = (struct gq_pool){0};
    }
    gq_unlock(&state->pool_lock);
}

GQ_EXPORT CUresult cuMemPoolDestroy(CUpool handle) {
    struct gq_state *state = gq_open();
    struct gq_pool *pool = state ? gq_pool_leave(state, handle) : NULL;
    CUresult result = GQ_CALL(GQ_cuMemPoolDestroy_cuMemPoolDestroy_at, (CUpool), handle);
    if (pool != NULL) gq_pool_left(state, pool, handle, result == CUDA_SUCCESS);
    return result;
}

GQ_EXPORT CUresult cuMemPoolTrimTo(CUpool pool, size_t keep) {
    CUresult result = GQ_CALL(GQ_cuMemPoolTrimTo_cuMemPoolTrimTo_at, (CUpool, size_t), pool, keep);
    struct gq_state *state = gq_open();
    if (result == CUDA_SUCCESS && state != NULL) gq_settle_pools(state);
    return result;
}

/* ---- synchronisations: two loads, unless this process uses pools ---- */

static CUresult synchronised(CUresult result) {
    struct gq_state *state = gq_open();
    if (state != NULL && __atomic_load_n(&state->pools_open, __ATOMIC_RELAXED))
        gq_settle_pools(state);
    return result;
}

GQ_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    return synchronised(
        GQ_CALL(GQ_cuStreamSynchronize_cuStreamSynchronize_at, (CUstream), stream));
}

GQ_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return synchronised(
        GQ_CALL(GQ_cuStreamSynchronize_cuStreamSynchronize_ptsz_at, (CUstream), stream));
}

GQ_EXPORT CUresult cuEventSynchronize(CUevent event) {
    return synchronised(GQ_CALL(GQ_cuEventSynchronize_cuEventSynchronize_at, (CUevent), event));
}

GQ_EXPORT CUresult cuCtxSynchronize(void) {
    return synchronised(GQ_CALL(GQ_cuCtxSynchronize_cuCtxSynchronize_at, (void)));
}

GQ_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    return synchronised(GQ_CALL(GQ_cuCtxSynchronize_cuCtxSynchronize_v2_at, (CUcontext), context));
}
