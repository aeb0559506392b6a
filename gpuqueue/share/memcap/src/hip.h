/* What the parts for AMD's HIP share; see hip.c. */
#ifndef GQ_HIP_H
#define GQ_HIP_H

#include "gq.h"

typedef int hipError_t;
enum { HIP_SUCCESS = 0, HIP_OUT_OF_MEMORY = 2, HIP_NOT_INITIALIZED = 3 };
enum { TOTAL_MEMORY_R0000 = 256, TOTAL_MEMORY_R0600 = 288 }; /* offsets in hipDeviceProp_t */

struct extent {
    size_t width, height, depth;
};
struct pitched {
    void *pointer;
    size_t pitch, width, height;
};
struct channels {
    int bits[4], kind;
};

#define HOOKS(X)                                                                             \
    X(hipMalloc) X(hipExtMallocWithFlags) X(hipMallocManaged) X(hipMallocPitch)              \
    X(hipMemAllocPitch) X(hipMalloc3D) X(hipFree) X(hipMallocArray) X(hipMalloc3DArray)      \
    X(hipArrayCreate) X(hipArray3DCreate) X(hipFreeArray) X(hipArrayDestroy)                 \
    X(hipMallocAsync) X(hipMallocFromPoolAsync) X(hipFreeAsync) X(hipMemPoolCreate)          \
    X(hipMemPoolDestroy) X(hipMemPoolTrimTo) X(hipMemCreate) X(hipMemRelease) X(hipMemMap)   \
    X(hipMemUnmap) X(hipMemRetainAllocationHandle) X(hipMemImportFromShareableHandle)        \
    X(hipMemGetInfo) X(hipDeviceTotalMem) X(hipGetDeviceProperties)                          \
    X(hipGetDevicePropertiesR0000) X(hipGetDevicePropertiesR0600) X(hipDeviceReset)          \
    X(hipDeviceSynchronize) X(hipStreamSynchronize) X(hipStreamSynchronize_spt)              \
    X(hipEventSynchronize) X(hipGetProcAddress) X(hipGetDriverEntryPoint)
#define CALLED(X)                                                                            \
    X(hipGetDevice) X(hipDeviceGetUuid) X(hipStreamGetDevice) X(hipStreamIsCapturing)        \
    X(hipDeviceGetMemPool) X(hipMemPoolGetAttribute)

enum {
#define X(name) at_##name,
    HOOKS(X) HOOK_COUNT,
    BEFORE_CALLED = HOOK_COUNT - 1,
    CALLED(X) FUNCTION_COUNT
#undef X
};

/* HIP's functions by their place in these lists; NULL where it has none. */
void *gq_real_hip(int function);

/* Call one of them: CALL(name, (types of its arguments), arguments...) */
#define CALL(name, type, ...)                                                  \
    ({                                                                         \
        hipError_t (*function_) type = (hipError_t(*) type)gq_real_hip(at_##name);    \
        function_ ? function_(__VA_ARGS__) : HIP_NOT_INITIALIZED;              \
    })

/* Place in the ledger of a device, of the current one; -1: not in it. */
int gq_hip_gpu(int device);
int gq_hip_current(int *device);

/* An allocation is refused: what to answer. */
hipError_t gq_hip_refused(void);

/* Freed elsewhere; what hip_more.c calls of hip.c's. */
GQ_EXPORT hipError_t hipFreeAsync(void *pointer, void *stream);

/* The replacement of a function that HIP has handed out, or just that. */
void *gq_hip_replacement(void *found);

#endif
