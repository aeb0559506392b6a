/* Replacements for the driver's functions that take and give back linear memory and arrays, that
 * report memory, and that end contexts. pools.c, graphs.c and vmm.c have the rest.
 *
 * All take the same way: charge, let the driver do it, note what was charged under the pointer that
 * came back; where the driver fails, take the charge back. To free: take the note out first (once
 * the driver has freed it, another thread may get the same pointer), let the driver do it, then
 * give the charge back; where the driver fails, put the note back.
 */
#include "gq.h"

/* Charge for an allocation in the current context. Returns the GPU's place; -1: not counted;
 * -2: refused. */
static int begin(struct gq_state *state, uint64_t units, uint32_t *context) {
    if (state == NULL || units == 0) return -1;
    int gpu = gq_gpu_of_current(state, context);
    if (gpu >= 0 && !gq_charge(state, gpu, units)) return -2;
    return gpu;
}

/* Note it, or take it back. `actual` is what it has turned out to take, in units; where that is more
 * and does not fit, `undo` is the driver's function that frees it. */
static CUresult end(struct gq_state *state, CUresult result, int gpu, uint64_t units,
                    uint64_t actual, uint32_t context, enum gq_kind kind, uint64_t address, int undo) {
    if (gpu < 0) return result;
    if (result == CUDA_SUCCESS && __builtin_expect(actual != units, 0)) {
        if (actual < units) gq_adjust(state, gpu, (int64_t)(actual - units));
        if (actual > units && !gq_charge(state, gpu, actual - units)) {
            GQ_CALL(undo, (uint64_t), address);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result != CUDA_SUCCESS) {
        gq_adjust(state, gpu, -(int64_t)units);
        return result;
    }
    gq_note(state, gq_make(kind, address, actual, gpu, context));
    return result;
}

static CUresult give_back(struct gq_state *state, CUresult result, const struct gq_entry *entry) {
    if (result != CUDA_SUCCESS) {
        gq_note(state, *entry);
        return result;
    }
    if (gq_kind_of(entry) == GQ_ASYNC) {
        gq_pool_freed(state, entry);
    } else {
        gq_adjust(state, gq_gpu_of(entry), -gq_units_of(entry));
    }
    return result;
}

/* ---- linear memory ---- */

GQ_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct gq_state *state = gq_open();
    uint64_t units = gq_units(bytes);
    uint32_t context;
    int gpu = begin(state, units, &context);
    if (gpu == -2) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GQ_CALL(GQ_cuMemAlloc_cuMemAlloc_v2_at, (CUdeviceptr *, size_t), pointer, bytes);
    return end(state, result, gpu, units, units, context, GQ_POINTER, result ? 0 : *pointer,
               GQ_cuMemFree_cuMemFree_v2_at);
}

GQ_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    struct gq_state *state = gq_open();
    uint64_t units = gq_units(bytes);
    uint32_t context;
    int gpu = begin(state, units, &context);
    if (gpu == -2) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GQ_CALL(GQ_cuMemAllocManaged_cuMemAllocManaged_at,
                              (CUdeviceptr *, size_t, unsigned), pointer, bytes, flags);
    return end(state, result, gpu, units, units, context, GQ_POINTER, result ? 0 : *pointer,
               GQ_cuMemFree_cuMemFree_v2_at);
}

static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t both;
    return __builtin_mul_overflow(a, b, &both) ? UINT64_MAX : both;
}

GQ_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width,
                                      size_t height, unsigned element) {
    struct gq_state *state = gq_open();
    /* rows begin at multiples of the pitch, which only the driver knows: 512 at present */
    uint64_t row = width > UINT64_MAX - 511 ? UINT64_MAX : (width + 511) & ~511ull;
    uint64_t units = gq_units(product(row, height)), actual = units;
    uint32_t context;
    int gpu = begin(state, units, &context);
    if (gpu == -2) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GQ_CALL(GQ_cuMemAllocPitch_cuMemAllocPitch_v2_at,
                              (CUdeviceptr *, size_t *, size_t, size_t, unsigned), pointer, pitch,
                              width, height, element);
    if (result == CUDA_SUCCESS) actual = gq_units(product(*pitch, height));
    return end(state, result, gpu, units, actual, context, GQ_POINTER, result ? 0 : *pointer,
               GQ_cuMemFree_cuMemFree_v2_at);
}

/* Take out what was noted of a pointer, from whichever call it came. */
static int take_pointer(struct gq_state *state, CUdeviceptr pointer, struct gq_entry *entry) {
    return gq_table_take(&state->table, gq_key(GQ_POINTER, pointer), entry) ||
           gq_table_take(&state->table, gq_key(GQ_ASYNC, pointer), entry);
}

GQ_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    int found = state != NULL && take_pointer(state, pointer, &entry);
    CUresult result = GQ_CALL(GQ_cuMemFree_cuMemFree_v2_at, (CUdeviceptr), pointer);
    if (!found) return result;
    give_back(state, result, &entry);
    if (gq_kind_of(&entry) == GQ_ASYNC) gq_settle_pools(state); /* it has waited for the GPU */
    return result;
}

static CUresult free_async(int place, CUdeviceptr pointer, CUstream stream) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    int found = state != NULL && take_pointer(state, pointer, &entry);
    CUresult result = GQ_CALL(place, (CUdeviceptr, CUstream), pointer, stream);
    return found ? give_back(state, result, &entry) : result;
}

GQ_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_async(GQ_cuMemFreeAsync_cuMemFreeAsync_at, pointer, stream);
}

GQ_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_async(GQ_cuMemFreeAsync_cuMemFreeAsync_ptsz_at, pointer, stream);
}

/* ---- arrays ---- */

/* Bits of one element with all its channels; 0 for formats that are not known here. */
static uint64_t bits(int format, unsigned channels) {
    switch (format) {
    case 0x01: case 0x08: return 8ull * channels;
    case 0x02: case 0x09: case 0x10: return 16ull * channels;
    case 0x03: case 0x0a: case 0x20: return 32ull * channels;
    case 0xb0: return 12;                                                   /* NV12 */
    case 0xc0: case 0xc6: return 8;                                         /* 8X1 */
    case 0xc1: case 0xc7: case 0xc3: case 0xc9: return 16;                  /* 8X2, 16X1 */
    case 0xc2: case 0xc8: case 0xc4: case 0xca: return 32;                  /* 8X4, 16X2 */
    case 0xc5: case 0xcb: return 64;                                        /* 16X4 */
    case 0x91: case 0x92: case 0x97: case 0x98: return 4;                   /* BC1, BC4 */
    default: return format >= 0x93 && format <= 0x9d ? 8 : 0;               /* the other BC */
    }
}

uint64_t gq_array_bytes(size_t width, size_t height, size_t depth, int format, unsigned channels,
                        unsigned flags) {
    if (flags & (ARRAY_SPARSE | ARRAY_DEFERRED)) return 0; /* its memory comes from cuMemCreate */
    uint64_t elements = product(product(width, height ? height : 1), depth ? depth : 1);
    uint64_t all = product(elements, bits(format, channels));
    return all == UINT64_MAX ? all : (all + 7) / 8;
}

/* What the driver says that an array takes; `estimate` where it does not say. */
static uint64_t array_units(int function, void *array, uint64_t estimate) {
    CUarray_needs needs = {0};
    CUdevice device;
    if (GQ_CALL(GQ_cuCtxGetDevice, (CUdevice *), &device) == CUDA_SUCCESS &&
        GQ_CALL(function, (CUarray_needs *, void *, CUdevice), &needs, array, device) == CUDA_SUCCESS &&
        needs.size != 0 && gq_units(needs.size) < GQ_NO_UNITS)
        return gq_units(needs.size);
    return estimate;
}

static CUresult create_array(int place, CUarray *array, const void *descriptor, uint64_t bytes,
                             int backed) {
    struct gq_state *state = gq_open();
    /* of a format that is not known the size is known only when it is there */
    uint64_t units = bytes ? gq_units(bytes) : (uint64_t)backed, actual = units;
    uint32_t context;
    int gpu = begin(state, units, &context);
    if (gpu == -2) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GQ_CALL(place, (CUarray *, const void *), array, descriptor);
    if (result == CUDA_SUCCESS && gpu >= 0)
        actual = array_units(GQ_cuArrayGetMemoryRequirements, *array, units);
    return end(state, result, gpu, units, actual, context, GQ_ARRAY, result ? 0 : (uint64_t)*array,
               GQ_cuArrayDestroy_cuArrayDestroy_at);
}

GQ_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUarray_descriptor *wanted) {
    uint64_t bytes = wanted ? gq_array_bytes(wanted->width, wanted->height, 1, wanted->format,
                                          wanted->channels, 0) : 0;
    return create_array(GQ_cuArrayCreate_cuArrayCreate_v2_at, array, wanted, bytes, wanted != NULL);
}

GQ_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3d_descriptor *wanted) {
    uint64_t bytes = wanted ? gq_array_bytes(wanted->width, wanted->height, wanted->depth, wanted->format,
                                          wanted->channels, wanted->flags) : 0;
    int backed = wanted != NULL && !(wanted->flags & (ARRAY_SPARSE | ARRAY_DEFERRED));
    return create_array(GQ_cuArray3DCreate_cuArray3DCreate_v2_at, array, wanted, bytes, backed);
}

static uint64_t mipmap_bytes(const CUarray3d_descriptor *wanted, unsigned levels) {
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels && level < 64; level++) {
        /* the layers of a layered one (flag 1) do not shrink */
        size_t depth = wanted->flags & 1 ? wanted->depth : wanted->depth >> level;
        uint64_t bytes = gq_array_bytes((wanted->width >> level) + !(wanted->width >> level),
                                     wanted->height >> level, depth, wanted->format, wanted->channels,
                                     wanted->flags);
        sum = sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

GQ_EXPORT CUresult cuMipmappedArrayCreate(CUmipmap *array, const CUarray3d_descriptor *wanted,
                                          unsigned levels) {
    struct gq_state *state = gq_open();
    uint64_t units = wanted ? gq_units(mipmap_bytes(wanted, levels)) : 0, actual = units;
    uint32_t context;
    int gpu = begin(state, units, &context);
    if (gpu == -2) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GQ_CALL(GQ_cuMipmappedArrayCreate_cuMipmappedArrayCreate_at,
                              (CUmipmap *, const CUarray3d_descriptor *, unsigned), array, wanted, levels);
    if (result == CUDA_SUCCESS && gpu >= 0)
        actual = array_units(GQ_cuMipmappedArrayGetMemoryRequirements, *array, units);
    return end(state, result, gpu, units, actual, context, GQ_MIPMAP, result ? 0 : (uint64_t)*array,
               GQ_cuMipmappedArrayDestroy_cuMipmappedArrayDestroy_at);
}

static CUresult destroy_array(int place, enum gq_kind kind, void *array) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    int found = state != NULL && gq_table_take(&state->table, gq_key(kind, (uint64_t)array), &entry);
    CUresult result = GQ_CALL(place, (void *), array);
    return found ? give_back(state, result, &entry) : result;
}

GQ_EXPORT CUresult cuArrayDestroy(CUarray array) {
    return destroy_array(GQ_cuArrayDestroy_cuArrayDestroy_at, GQ_ARRAY, array);
}

GQ_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmap array) {
    return destroy_array(GQ_cuMipmappedArrayDestroy_cuMipmappedArrayDestroy_at, GQ_MIPMAP, array);
}

/* ---- what a program is told: the cap is the card ---- */

GQ_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    size_t real_free = 0, real_total = 0;
    CUresult result = GQ_CALL(GQ_cuMemGetInfo_cuMemGetInfo_v2_at, (size_t *, size_t *), &real_free,
                              &real_total);
    if (result != CUDA_SUCCESS) return result;
    struct gq_state *state = gq_open();
    uint32_t context;
    int gpu = state ? gq_gpu_of_current(state, &context) : -1;
    uint64_t room, limit;
    if (gpu >= 0) gq_settle_pools(state);
    if (gpu >= 0 && gq_room(gpu, &room, &limit)) {
        if (room < real_free) real_free = room;
        if (limit < real_total) real_total = limit;
    }
    if (free != NULL) *free = real_free; /* some programs pass NULL */
    if (total != NULL) *total = real_total;
    return result;
}

GQ_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = GQ_CALL(GQ_cuDeviceTotalMem_cuDeviceTotalMem_v2_at, (size_t *, CUdevice), bytes,
                              device);
    struct gq_state *state = gq_open();
    int gpu = result == CUDA_SUCCESS && state ? gq_gpu_of_device(state, device) : -1;
    uint64_t room, limit;
    if (gpu >= 0 && bytes != NULL && gq_room(gpu, &room, &limit) && limit < *bytes) *bytes = limit;
    return result;
}

/* ---- contexts: their memory goes with them ---- */

static void context_gone(struct gq_state *state, CUcontext context) {
    struct gq_entry entry;
    uint64_t at = 0;
    unsigned shard = 0;
    uint32_t number = gq_context_end(state, context);
    while (number != 0 && gq_table_take_of(&state->table, number, &shard, &at, &entry))
        gq_adjust(state, gq_gpu_of(&entry), -gq_units_of(&entry));
    gq_settle_pools(state);
}

static CUresult destroy_context(int place, CUcontext context) {
    CUresult result = GQ_CALL(place, (CUcontext), context);
    struct gq_state *state = gq_open();
    if (result == CUDA_SUCCESS && state != NULL) context_gone(state, context);
    return result;
}

GQ_EXPORT CUresult cuCtxDestroy(CUcontext context) {
    return destroy_context(GQ_cuCtxDestroy_cuCtxDestroy_at, context);
}

GQ_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy_context(GQ_cuCtxDestroy_cuCtxDestroy_v2_at, context);
}

GQ_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = GQ_CALL(GQ_cuDevicePrimaryCtxRetain_cuDevicePrimaryCtxRetain_at,
                              (CUcontext *, CUdevice), context, device);
    struct gq_state *state = gq_open();
    if (result == CUDA_SUCCESS && state != NULL && device >= 0 && device < (int)GQ_MAX_GPUS)
        __atomic_store_n(&state->primary[device], *context, __ATOMIC_RELAXED);
    return result;
}

/* A release ends the context only where it was the last one. */
static CUresult leave_primary(int place, CUdevice device) {
    CUresult result = GQ_CALL(place, (CUdevice), device);
    struct gq_state *state = gq_open();
    if (result != CUDA_SUCCESS || state == NULL || device < 0 || device >= (int)GQ_MAX_GPUS)
        return result;
    unsigned flags;
    int active = 0;
    if (GQ_CALL(GQ_cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *), device, &flags,
                &active) == CUDA_SUCCESS && !active)
        context_gone(state, __atomic_load_n(&state->primary[device], __ATOMIC_RELAXED));
    return result;
}

GQ_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return leave_primary(GQ_cuDevicePrimaryCtxRelease_cuDevicePrimaryCtxRelease_at, device);
}

GQ_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return leave_primary(GQ_cuDevicePrimaryCtxRelease_cuDevicePrimaryCtxRelease_v2_at, device);
}

static CUresult reset_primary(int place, CUdevice device) {
    CUresult result = GQ_CALL(place, (CUdevice), device);
    struct gq_state *state = gq_open();
    if (result == CUDA_SUCCESS && state != NULL && device >= 0 && device < (int)GQ_MAX_GPUS)
        context_gone(state, __atomic_load_n(&state->primary[device], __ATOMIC_RELAXED));
    return result;
}

GQ_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return reset_primary(GQ_cuDevicePrimaryCtxReset_cuDevicePrimaryCtxReset_at, device);
}

GQ_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return reset_primary(GQ_cuDevicePrimaryCtxReset_cuDevicePrimaryCtxReset_v2_at, device);
}
