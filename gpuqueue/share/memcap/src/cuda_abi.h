/* The part of the CUDA driver's binary interface that is used here: sizes and numbers from NVIDIA's
 * documentation of the driver API, versions 10.0 to 13.0. The tests compare it with a real cuda.h
 * where there is one.
 */
#ifndef GQ_CUDA_ABI_H
#define GQ_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUhandle; /* of cuMemCreate */
typedef void *CUcontext, *CUstream, *CUevent, *CUarray, *CUmipmap, *CUpool, *CUgraph, *CUexec, *CUnode;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
};

enum { LOCATION_DEVICE = 1, LOCATION_DEVICE_PART = 6 };
enum { POOL_RESERVED = 5, POOL_USED = 7 };
enum { GRAPH_RESERVED = 2 };
enum { NODE_GRAPH = 4, NODE_MEM_ALLOC = 10 };
enum { ARRAY_SPARSE = 0x40, ARRAY_DEFERRED = 0x80 };

typedef struct {
    int type;
    int id;
} CUlocation;

typedef struct {
    int type;
    int handle_types;
    CUlocation location;
} CUalloc_head; /* how both CUmemAllocationProp and CUmemPoolProps begin */

typedef struct {
    CUalloc_head pool;
    void *security;
    size_t max_size;
    unsigned char reserved[56];
    const void *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr pointer;
} CUalloc_node;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUarray_descriptor;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUarray3d_descriptor;

typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} CUarray_needs;

#endif
