/* Physical memory by handle (cuMemCreate). It lives until its last handle is released and its last
 * mapping is gone, in whatever order; both are counted, and only then is the charge given back.
 * A handle that was imported is charged to the process that created it, and to nobody else.
 */
#include "gq.h"

static void count(struct gq_state *state, CUhandle handle, int change) {
    struct gq_entry entry;
    if (gq_table_refer(&state->table, gq_key(GQ_HANDLE, handle), change, &entry) == 0)
        gq_adjust(state, gq_gpu_of(&entry), -gq_units_of(&entry));
}

void gq_handle_again(struct gq_state *state, uint64_t handle) { count(state, handle, 1); }

int gq_handle_leave(struct gq_state *state, uint64_t handle, struct gq_entry *entry) {
    return gq_table_refer(&state->table, gq_key(GQ_HANDLE, handle), -1, entry);
}

void gq_handle_left(struct gq_state *state, uint64_t handle, int left, struct gq_entry *entry,
                    int released) {
    if (left < 0) return;
    if (released) {
        if (left == 0) gq_adjust(state, gq_gpu_of(entry), -gq_units_of(entry));
    } else if (left > 0) {
        gq_table_refer(&state->table, gq_key(GQ_HANDLE, handle), 1, entry);
    } else {
        gq_note(state, gq_make(GQ_HANDLE, handle, (uint64_t)gq_units_of(entry), gq_gpu_of(entry), 1));
    }
}

void gq_mapped(struct gq_state *state, uint64_t address, uint64_t bytes, uint64_t handle) {
    struct gq_entry entry;
    if (gq_table_refer(&state->table, gq_key(GQ_HANDLE, handle), 1, &entry) <= 0) return;
    struct gq_entry mapped = {gq_key(GQ_MAPPED, address), handle};
    gq_note(state, mapped);
    /* no longer than what its handle has, so that it fits */
    gq_note(state, gq_make(GQ_MAPPING, address, bytes >> GQ_UNIT_SHIFT, 0, 0));
}

void gq_unmapped(struct gq_state *state, uint64_t address, uint64_t bytes) {
    /* one call may cover many mappings, with others between them that are not counted */
    struct gq_entry mapping, mapped;
    for (uint64_t at = address; at - address < bytes;) {
        uint64_t length = 2ull << 20;
        if (gq_table_take(&state->table, gq_key(GQ_MAPPING, at), &mapping) &&
            gq_table_take(&state->table, gq_key(GQ_MAPPED, at), &mapped)) {
            count(state, mapped.value, -1);
            length = (uint64_t)gq_units_of(&mapping) << GQ_UNIT_SHIFT;
        }
        at += length;
    }
}

GQ_EXPORT CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUalloc_head *wanted,
                               unsigned long long flags) {
    struct gq_state *state = gq_open();
    int gpu = -1;
    /* charged to the device that it is on, which need not be the current one */
    if (state != NULL && wanted != NULL && bytes != 0) {
        if (wanted->location.type == LOCATION_DEVICE)
            gpu = gq_gpu_of_device(state, wanted->location.id);
        if (wanted->location.type == LOCATION_DEVICE_PART)
            gpu = gq_gpu_of_device(state, wanted->location.id & 0xff);
    }
    uint64_t units = gq_units(bytes);
    if (gpu >= 0 && !gq_charge(state, gpu, units)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GQ_CALL(GQ_cuMemCreate_cuMemCreate_at,
                              (CUhandle *, size_t, const CUalloc_head *, unsigned long long), handle,
                              bytes, wanted, flags);
    if (gpu < 0) return result;
    if (result != CUDA_SUCCESS) {
        gq_adjust(state, gpu, -(int64_t)units);
        return result;
    }
    gq_note(state, gq_make(GQ_HANDLE, *handle, units, gpu, 1));
    return result;
}

GQ_EXPORT CUresult cuMemRelease(CUhandle handle) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    /* given up first: afterwards the same handle may be somebody's new one */
    int left = state ? gq_handle_leave(state, handle, &entry) : -1;
    CUresult result = GQ_CALL(GQ_cuMemRelease_cuMemRelease_at, (CUhandle), handle);
    if (left >= 0) gq_handle_left(state, handle, left, &entry, result == CUDA_SUCCESS);
    return result;
}

GQ_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle,
                            unsigned long long flags) {
    CUresult result = GQ_CALL(GQ_cuMemMap_cuMemMap_at,
                              (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long), address,
                              bytes, offset, handle, flags);
    struct gq_state *state = gq_open();
    if (result == CUDA_SUCCESS && state != NULL) gq_mapped(state, address, bytes, handle);
    return result;
}

GQ_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    CUresult result = GQ_CALL(GQ_cuMemUnmap_cuMemUnmap_at, (CUdeviceptr, size_t), address, bytes);
    struct gq_state *state = gq_open();
    if (result == CUDA_SUCCESS && state != NULL) gq_unmapped(state, address, bytes);
    return result;
}

GQ_EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address) {
    CUresult result = GQ_CALL(GQ_cuMemRetainAllocationHandle_cuMemRetainAllocationHandle_at,
                              (CUhandle *, void *), handle, address);
    struct gq_state *state = gq_open();
    if (result == CUDA_SUCCESS && state != NULL) count(state, *handle, 1);
    return result;
}

GQ_EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shared, int type) {
    CUresult result = GQ_CALL(GQ_cuMemImportFromShareableHandle_cuMemImportFromShareableHandle_at,
                              (CUhandle *, void *, int), handle, shared, type);
    struct gq_state *state = gq_open();
    /* of a handle of our own, the driver may give that very handle back */
    if (result == CUDA_SUCCESS && state != NULL) count(state, *handle, 1);
    return result;
}
