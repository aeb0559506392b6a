/* What the parts of the memory cap share. See hooks.c for where to begin. */
#ifndef GQ_H
#define GQ_H

#include "cuda_abi.h"
#include "ledger.h"
#include "table.h"

#define GQ_EXPORT __attribute__((visibility("default")))
#define GQ_MAX_POOLS 256
#define GQ_MAX_CONTEXTS 255 /* of those beyond, memory is given back one by one only */

struct gq_pool {
    void *handle;     /* NULL: the place is free */
    uint64_t charged; /* units in the ledger for it */
    uint64_t live;    /* units of its allocations that have not been freed */
    uint8_t gpu;      /* place in the ledger + 1; 0: not of a GPU in it */
    uint8_t gone;     /* destroyed; lives until its allocations are freed */
    int64_t (*tells)(void *pool, int which); /* its attributes, in bytes; -1: it does not tell */
};

/* All that is of this process alone. The kernel gives a forked child zeroes in its place
 * (MADV_WIPEONFORK): no slot, no entries, no lock held by a thread that the child has not. */
struct gq_state {
    int32_t pid;    /* where the kernel does not do that */
    uint32_t begin; /* lock around the claim of a slot */
    uint32_t slot;  /* + 1 */
    uint32_t contexts; /* counts contexts that were destroyed */
    uint32_t context_lock;
    uint32_t pools_open; /* some pool holds more than it has given out */
    uint32_t graphs; /* some instantiated graph allocates memory */
    uint32_t pool_lock;
    uint32_t graph_lock;
    uint32_t pool_count;
    uint8_t gpus[GQ_MAX_GPUS]; /* by device number: place in the ledger + 2; 1: not in it; 0: unknown */
    void *primary[GQ_MAX_GPUS];
    void *context[GQ_MAX_CONTEXTS]; /* by number - 1 */
    uint64_t graph_charged[GQ_MAX_GPUS];
    struct gq_pool pools[GQ_MAX_POOLS];
    struct gq_table table;
};

extern struct gq_ledger *gq_the_ledger;

/* The ledger, once gq_open() has not returned NULL. */
static inline struct gq_ledger *gq_book(void) {
    return __atomic_load_n(&gq_the_ledger, __ATOMIC_RELAXED);
}

/* This process's state; NULL where it has no cap. */
struct gq_state *gq_open_slowly(void);
extern struct gq_state *gq_ready_state; /* set where nothing more needs to be asked */

static inline struct gq_state *gq_open(void) {
    struct gq_state *state = __atomic_load_n(&gq_ready_state, __ATOMIC_ACQUIRE);
    return __builtin_expect(state != NULL, 1) ? state : gq_open_slowly();
}

/* Place in the ledger of a device, of the current context's device; -1: not in it. The context's
 * number is 0 where it has none. */
int gq_gpu_of_device(struct gq_state *state, CUdevice device);
int gq_gpu_of_current(struct gq_state *state, uint32_t *context);

/* Forget a context's number and return it, for a context that is destroyed. */
uint32_t gq_context_end(struct gq_state *state, CUcontext context);
int gq_gpu_of_stream(struct gq_state *state, CUstream stream, CUdevice *device);

/* What the driver takes for `bytes`, in units. */
uint64_t gq_units(uint64_t bytes);

/* Returns 0, having counted the refusal, where it does not fit. */
int gq_charge(struct gq_state *state, int gpu, uint64_t units);
int gq_try_charge(struct gq_state *state, int gpu, uint64_t units);
void gq_refuse(struct gq_state *state, int gpu, uint64_t units);
void gq_adjust(struct gq_state *state, int gpu, int64_t units);

/* Note what was charged under its pointer or handle. Without memory for the note, the charge stays
 * until the process ends. */
void gq_note(struct gq_state *state, struct gq_entry entry);

/* Room below the cap and the cap itself in bytes; 0 where the GPU is not capped. */
int gq_room(int gpu, uint64_t *room, uint64_t *limit);

/* pools.c. An allocation from a pool: its place (with the GPU that it is on), -1 where there are too
 * many; what to charge ahead, 0 where it is refused; and when it is made, 0 where the pool took so
 * much for it that the job is over its cap. */
void gq_settle_pools(struct gq_state *state);
void gq_pool_freed(struct gq_state *state, const struct gq_entry *entry);
int gq_pool_place(struct gq_state *state, void *pool, int *gpu, int64_t (*tells)(void *, int));
int gq_pool_ahead(struct gq_state *state, int gpu, int place, uint64_t units, uint64_t *ahead);
int gq_pool_made(struct gq_state *state, int gpu, int place, uint64_t units, uint64_t ahead,
                 uint64_t pointer);
/* A pool that is about to be destroyed; NULL: it is not known. Then whether it was. */
struct gq_pool *gq_pool_leave(struct gq_state *state, void *handle);
void gq_pool_left(struct gq_state *state, struct gq_pool *pool, void *handle, int destroyed);
/* All pools of a GPU are gone, and what they had. */
void gq_pools_reset(struct gq_state *state, int gpu);

/* vmm.c. Of a handle of physical memory: one reference more; one that is about to be given up (what
 * is left, -1: it is not counted), and whether it was; and where it is mapped, or no longer. */
void gq_handle_again(struct gq_state *state, uint64_t handle);
int gq_handle_leave(struct gq_state *state, uint64_t handle, struct gq_entry *entry);
void gq_handle_left(struct gq_state *state, uint64_t handle, int left, struct gq_entry *entry,
                    int released);
void gq_mapped(struct gq_state *state, uint64_t address, uint64_t bytes, uint64_t handle);
void gq_unmapped(struct gq_state *state, uint64_t address, uint64_t bytes);

/* hooks.c: bytes of an array of a driver's format; 0 for formats that are not known here. */
uint64_t gq_array_bytes(size_t width, size_t height, size_t depth, int format, unsigned channels,
                        unsigned flags);

/* hip.c: the replacement of a function of HIP's that a look-up has found, or just that. */
void *gq_hip_exchange(const char *name, void *found);

/* late.c: whether this process has yet to get its share. */
int gq_is_late(void);

/* hooks.c */
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);

/* Functions that are replaced: name asked for, name in the library, from CUDA version, per-thread
 * default stream (0 no, 1 yes, 2 either). The first column is what cuGetProcAddress is asked. */
#define GQ_HOOKS(X)                                                        \
    X(cuInit, cuInit, 2000, 2)                                             \
    X(cuMemAlloc, cuMemAlloc_v2, 3020, 2)                                  \
    X(cuMemAllocPitch, cuMemAllocPitch_v2, 3020, 2)                        \
    X(cuMemFree, cuMemFree_v2, 3020, 2)                                    \
    X(cuMemAllocManaged, cuMemAllocManaged, 6000, 2)                       \
    X(cuArrayCreate, cuArrayCreate_v2, 3020, 2)                            \
    X(cuArray3DCreate, cuArray3DCreate_v2, 3020, 2)                        \
    X(cuArrayDestroy, cuArrayDestroy, 2000, 2)                             \
    X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, 2)             \
    X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, 2)           \
    X(cuMemCreate, cuMemCreate, 10020, 2)                                  \
    X(cuMemRelease, cuMemRelease, 10020, 2)                                \
    X(cuMemMap, cuMemMap, 10020, 2)                                        \
    X(cuMemUnmap, cuMemUnmap, 10020, 2)                                    \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, 2)  \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, 2) \
    X(cuMemAllocAsync, cuMemAllocAsync, 11020, 0)                          \
    X(cuMemAllocAsync, cuMemAllocAsync_ptsz, 11020, 1)                     \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 0)          \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, 11020, 1)     \
    X(cuMemFreeAsync, cuMemFreeAsync, 11020, 0)                            \
    X(cuMemFreeAsync, cuMemFreeAsync_ptsz, 11020, 1)                       \
    X(cuMemPoolCreate, cuMemPoolCreate, 11020, 2)                          \
    X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, 2)                        \
    X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, 2)                          \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, 0)                   \
    X(cuStreamSynchronize, cuStreamSynchronize_ptsz, 7000, 1)              \
    X(cuEventSynchronize, cuEventSynchronize, 2000, 2)                     \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, 2)                         \
    X(cuCtxSynchronize, cuCtxSynchronize_v2, 13000, 2)                     \
    X(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040, 2)            \
    X(cuGraphInstantiate, cuGraphInstantiate, 10000, 2)                    \
    X(cuGraphInstantiate, cuGraphInstantiate_v2, 11000, 2)                 \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags, 12000, 2)           \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, 2)  \
    X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, 0) \
    X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, 12000, 1) \
    X(cuGraphLaunch, cuGraphLaunch, 10000, 0)                              \
    X(cuGraphLaunch, cuGraphLaunch_ptsz, 10000, 1)                         \
    X(cuGraphUpload, cuGraphUpload, 11010, 0)                              \
    X(cuGraphUpload, cuGraphUpload_ptsz, 11010, 1)                         \
    X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, 2)                    \
    X(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, 2)                \
    X(cuMemGetInfo, cuMemGetInfo_v2, 3020, 2)                              \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, 2)                      \
    X(cuCtxDestroy, cuCtxDestroy, 2000, 2)                                 \
    X(cuCtxDestroy, cuCtxDestroy_v2, 4000, 2)                              \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 2)         \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, 2)       \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, 2)   \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 2)           \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, 2)       \
    X(cuGetProcAddress, cuGetProcAddress, 11030, 2)                        \
    X(cuGetProcAddress, cuGetProcAddress_v2, 12000, 2)

/* Functions that are only called. */
#define GQ_CALLED(X)                                                        \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) \
    X(cuDeviceGetUuid) X(cuDevicePrimaryCtxGetState)                        \
    X(cuStreamGetCtx) X(cuStreamIsCapturing) X(cuDeviceGetMemPool)          \
    X(cuMemPoolGetAttribute) X(cuDeviceGetGraphMemAttribute) X(cuGraphGetNodes) \
    X(cuGraphNodeGetType) X(cuGraphMemAllocNodeGetParams) X(cuGraphChildGraphNodeGetGraph) \
    X(cuArrayGetMemoryRequirements) X(cuMipmappedArrayGetMemoryRequirements) \
    X(cuDeviceGetUuid_v2)

enum {
#define X(base, name, since, ptsz) GQ_##base##_##name##_at,
    GQ_HOOKS(X)
#undef X
    GQ_HOOK_COUNT,
    GQ_BEFORE_CALLED = GQ_HOOK_COUNT - 1,
#define X(name) GQ_##name,
    GQ_CALLED(X)
#undef X
    GQ_FUNCTION_COUNT
};

/* resolve.c: functions of the driver by their place in these lists; NULL where it has none. */
extern void *gq_real_cuda[GQ_FUNCTION_COUNT];
extern int gq_cuda_found;
void gq_find_cuda(void);

static inline void *gq_real(int function) {
    if (__builtin_expect(!__atomic_load_n(&gq_cuda_found, __ATOMIC_ACQUIRE), 0)) gq_find_cuda();
    return __atomic_load_n(&gq_real_cuda[function], __ATOMIC_RELAXED);
}

/* Call one of them: GQ_CALL(place, (types of its arguments), arguments...) */
#define GQ_CALL(place, type, ...)                                        \
    ({                                                                   \
        CUresult (*function_) type = (CUresult(*) type)gq_real(place);   \
        function_ ? function_(__VA_ARGS__) : CUDA_ERROR_NOT_INITIALIZED; \
    })

#endif
