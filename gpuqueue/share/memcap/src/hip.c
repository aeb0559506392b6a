/* AMD's HIP: replacements for the functions of libamdhip64 that take and give back device memory
 * and that report it, on the same ledger and in the same way as those of CUDA's driver (hooks.c).
 *
 * HIP is a runtime: programs are linked to it, and its functions work on the thread's current
 * device. What else differs: a device is told by the 16 digits of its UUID as text; there are no
 * contexts, and hipDeviceReset frees what a device has; hipGetLastError tells the last failure. The
 * numbers and layouts are those of ROCm's hip_runtime_api.h and hip_deprecated.h (5.0 to 7.2).
 */
#include "hip.h"
#include "resolve.h"

#include <string.h>

#define X(name) GQ_EXPORT hipError_t name();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
HOOKS(X)
#pragma GCC diagnostic pop
#undef X

static const char *const names[FUNCTION_COUNT] = {
#define X(name) [at_##name] = #name,
    HOOKS(X) CALLED(X)
#undef X
};
static void *const hooks[HOOK_COUNT] = {
#define X(name) [at_##name] = (void *)name,
    HOOKS(X)
#undef X
};

static void *real_hip[FUNCTION_COUNT];
static int hip_found;

void *gq_real_hip(int function) {
    if (__builtin_expect(!__atomic_load_n(&hip_found, __ATOMIC_ACQUIRE), 0)) {
        for (int at = 0; at < FUNCTION_COUNT; at++)
            __atomic_store_n(&real_hip[at], gq_next_definition(names[at]), __ATOMIC_RELAXED);
        if (real_hip[at_hipMalloc] != NULL) __atomic_store_n(&hip_found, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&real_hip[function], __ATOMIC_RELAXED);
}

void *gq_hip_replacement(void *found) {
    for (int at = 0; at < HOOK_COUNT; at++)
        if (gq_real_hip(at) == found) return hooks[at];
    return found;
}

void *gq_hip_exchange(const char *name, void *found) {
    for (int at = 0; at < HOOK_COUNT; at++)
        if (strcmp(names[at], name) == 0) return gq_real_hip(at) == found ? hooks[at] : found;
    return found;
}

/* ---- which GPU ---- */

int gq_hip_gpu(int device) {
    static uint8_t known[GQ_MAX_GPUS]; /* place in the ledger + 2; 1: not in it; 0: not looked up */
    if (device < 0 || device >= (int)GQ_MAX_GPUS) return -1;
    int place = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
    if (__builtin_expect(place == 0, 0)) {
        uint8_t uuid[16];
        if (CALL(hipDeviceGetUuid, (void *, int), uuid, device) != HIP_SUCCESS) return -1;
        place = 1;
        for (unsigned index = 0; index < gq_book()->gpus; index++)
            if (memcmp(gq_book()->gpu[index].uuid, uuid, sizeof uuid) == 0) place = (int)index + 2;
        __atomic_store_n(&known[device], (uint8_t)place, __ATOMIC_RELAXED);
    }
    return place - 2;
}

int gq_hip_current(int *device) {
    *device = -1;
    return CALL(hipGetDevice, (int *), device) == HIP_SUCCESS ? gq_hip_gpu(*device) : -1;
}

/* What is noted of memory besides its GPU: hipDeviceReset frees all of a device. */
static uint32_t tag_of(int device) { return (uint32_t)device + 1; }

/* ---- charging ---- */

/* HIP is asked for more than any GPU has, so that hipGetLastError tells of the refusal as well. */
hipError_t gq_hip_refused(void) {
    void *nothing = NULL;
    if (CALL(hipMalloc, (void **, size_t), &nothing, SIZE_MAX >> 1) == HIP_SUCCESS)
        CALL(hipFree, (void *), nothing);
    return HIP_OUT_OF_MEMORY;
}

struct charge {
    struct gq_state *state;
    uint64_t units;
    int gpu, device; /* gpu -1: not counted */
};

/* Charge the current device. Returns 0 where it is refused. */
static int begin(struct charge *charge, uint64_t bytes) {
    *charge = (struct charge){.state = gq_open(), .units = gq_units(bytes), .gpu = -1};
    if (charge->state == NULL || bytes == 0) return 1;
    charge->gpu = gq_hip_current(&charge->device);
    return charge->gpu < 0 || gq_charge(charge->state, charge->gpu, charge->units);
}

/* Note what was made, or take the charge back. `bytes` is what it has turned out to take; where that
 * is more and does not fit, `undo` frees it. */
static hipError_t end(struct charge *charge, hipError_t result, enum gq_kind kind, void *address,
                      uint64_t bytes, int undo) {
    if (charge->gpu < 0) return result;
    uint64_t actual = gq_units(bytes);
    if (result == HIP_SUCCESS && actual > charge->units &&
        !gq_charge(charge->state, charge->gpu, actual - charge->units)) {
        hipError_t (*release)(void *) = (hipError_t(*)(void *))gq_real_hip(undo);
        if (release != NULL) release(address);
        result = gq_hip_refused();
    } else if (result == HIP_SUCCESS && actual < charge->units) {
        gq_adjust(charge->state, charge->gpu, (int64_t)(actual - charge->units));
    }
    if (result == HIP_SUCCESS)
        gq_note(charge->state, gq_make(kind, (uint64_t)address, actual, charge->gpu, tag_of(charge->device)));
    else
        gq_adjust(charge->state, charge->gpu, -(int64_t)charge->units);
    return result;
}

static hipError_t given_back(struct gq_state *state, hipError_t result, const struct gq_entry *entry) {
    if (result != HIP_SUCCESS)
        gq_note(state, *entry);
    else if (gq_kind_of(entry) == GQ_ASYNC)
        gq_pool_freed(state, entry);
    else
        gq_adjust(state, gq_gpu_of(entry), -gq_units_of(entry));
    return result;
}

/* ---- linear memory ---- */

static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t both;
    return __builtin_mul_overflow(a, b, &both) ? UINT64_MAX : both;
}

/* Rows begin at multiples of the pitch, which only HIP knows: 256 at present. */
static uint64_t rows(size_t width, size_t height) {
    return product(width > UINT64_MAX - 255 ? UINT64_MAX : (width + 255) & ~255ull, height);
}

GQ_EXPORT hipError_t hipMalloc(void **pointer, size_t bytes) {
    struct charge charge;
    if (!begin(&charge, bytes)) return gq_hip_refused();
    hipError_t result = CALL(hipMalloc, (void **, size_t), pointer, bytes);
    return end(&charge, result, GQ_POINTER, result ? NULL : *pointer, bytes, at_hipFree);
}

GQ_EXPORT hipError_t hipExtMallocWithFlags(void **pointer, size_t bytes, unsigned flags) {
    struct charge charge;
    if (!begin(&charge, bytes)) return gq_hip_refused();
    hipError_t result = CALL(hipExtMallocWithFlags, (void **, size_t, unsigned), pointer, bytes, flags);
    return end(&charge, result, GQ_POINTER, result ? NULL : *pointer, bytes, at_hipFree);
}

GQ_EXPORT hipError_t hipMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    struct charge charge;
    if (!begin(&charge, bytes)) return gq_hip_refused();
    hipError_t result = CALL(hipMallocManaged, (void **, size_t, unsigned), pointer, bytes, flags);
    return end(&charge, result, GQ_POINTER, result ? NULL : *pointer, bytes, at_hipFree);
}

GQ_EXPORT hipError_t hipMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    struct charge charge;
    if (!begin(&charge, rows(width, height))) return gq_hip_refused();
    hipError_t result = CALL(hipMallocPitch, (void **, size_t *, size_t, size_t), pointer, pitch, width,
                             height);
    return end(&charge, result, GQ_POINTER, result ? NULL : *pointer,
               result ? 0 : product(*pitch, height), at_hipFree);
}

GQ_EXPORT hipError_t hipMemAllocPitch(void **pointer, size_t *pitch, size_t width, size_t height,
                                      unsigned element) {
    struct charge charge;
    if (!begin(&charge, rows(width, height))) return gq_hip_refused();
    hipError_t result = CALL(hipMemAllocPitch, (void **, size_t *, size_t, size_t, unsigned), pointer,
                             pitch, width, height, element);
    return end(&charge, result, GQ_POINTER, result ? NULL : *pointer,
               result ? 0 : product(*pitch, height), at_hipFree);
}

GQ_EXPORT hipError_t hipMalloc3D(struct pitched *made, struct extent wanted) {
    struct charge charge;
    uint64_t lines = product(wanted.height, wanted.depth);
    if (!begin(&charge, rows(wanted.width, lines))) return gq_hip_refused();
    hipError_t result = CALL(hipMalloc3D, (struct pitched *, struct extent), made, wanted);
    return end(&charge, result, GQ_POINTER, result ? NULL : made->pointer,
               result ? 0 : product(made->pitch, lines), at_hipFree);
}

/* Take out what was noted of a pointer, from whichever call it came. */
static int take_pointer(struct gq_state *state, void *pointer, struct gq_entry *entry) {
    return state != NULL &&
           (gq_table_take(&state->table, gq_key(GQ_POINTER, (uint64_t)pointer), entry) ||
            gq_table_take(&state->table, gq_key(GQ_ASYNC, (uint64_t)pointer), entry));
}

GQ_EXPORT hipError_t hipFree(void *pointer) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    int found = take_pointer(state, pointer, &entry);
    hipError_t result = CALL(hipFree, (void *), pointer);
    return found ? given_back(state, result, &entry) : result;
}

GQ_EXPORT hipError_t hipFreeAsync(void *pointer, void *stream) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    int found = take_pointer(state, pointer, &entry);
    hipError_t result = CALL(hipFreeAsync, (void *, void *), pointer, stream);
    return found ? given_back(state, result, &entry) : result;
}

/* ---- arrays ---- */

static uint64_t texels(const struct channels *wanted, size_t width, size_t height, size_t depth) {
    if (wanted == NULL) return 0;
    uint64_t bits = 0;
    for (int at = 0; at < 4; at++) bits += (uint64_t)wanted->bits[at];
    uint64_t all = product(product(product(width, height ? height : 1), depth ? depth : 1), bits);
    return all == UINT64_MAX ? all : (all + 7) / 8;
}

GQ_EXPORT hipError_t hipMallocArray(void **array, const struct channels *wanted, size_t width,
                                    size_t height, unsigned flags) {
    struct charge charge;
    uint64_t bytes = texels(wanted, width, height, 1);
    if (!begin(&charge, bytes)) return gq_hip_refused();
    hipError_t result = CALL(hipMallocArray, (void **, const void *, size_t, size_t, unsigned), array,
                             wanted, width, height, flags);
    return end(&charge, result, GQ_ARRAY, result ? NULL : *array, bytes, at_hipFreeArray);
}

GQ_EXPORT hipError_t hipMalloc3DArray(void **array, const struct channels *wanted, struct extent size,
                                      unsigned flags) {
    struct charge charge;
    uint64_t bytes = texels(wanted, size.width, size.height, size.depth);
    if (!begin(&charge, bytes)) return gq_hip_refused();
    hipError_t result = CALL(hipMalloc3DArray, (void **, const void *, struct extent, unsigned), array,
                             wanted, size, flags);
    return end(&charge, result, GQ_ARRAY, result ? NULL : *array, bytes, at_hipFreeArray);
}

GQ_EXPORT hipError_t hipArrayCreate(void **array, const CUarray_descriptor *wanted) {
    struct charge charge;
    uint64_t bytes = wanted ? gq_array_bytes(wanted->width, wanted->height, 1, wanted->format,
                                             wanted->channels, 0) : 0;
    if (!begin(&charge, bytes)) return gq_hip_refused();
    hipError_t result = CALL(hipArrayCreate, (void **, const void *), array, wanted);
    return end(&charge, result, GQ_ARRAY, result ? NULL : *array, bytes, at_hipArrayDestroy);
}

GQ_EXPORT hipError_t hipArray3DCreate(void **array, const CUarray3d_descriptor *wanted) {
    struct charge charge;
    uint64_t bytes = wanted ? gq_array_bytes(wanted->width, wanted->height, wanted->depth,
                                             wanted->format, wanted->channels, 0) : 0;
    if (!begin(&charge, bytes)) return gq_hip_refused();
    hipError_t result = CALL(hipArray3DCreate, (void **, const void *), array, wanted);
    return end(&charge, result, GQ_ARRAY, result ? NULL : *array, bytes, at_hipArrayDestroy);
}

static hipError_t free_array(int function, void *array) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    hipError_t (*release)(void *) = (hipError_t(*)(void *))gq_real_hip(function);
    int found = state && gq_table_take(&state->table, gq_key(GQ_ARRAY, (uint64_t)array), &entry);
    hipError_t result = release ? release(array) : HIP_NOT_INITIALIZED;
    return found ? given_back(state, result, &entry) : result;
}

GQ_EXPORT hipError_t hipFreeArray(void *array) { return free_array(at_hipFreeArray, array); }

GQ_EXPORT hipError_t hipArrayDestroy(void *array) { return free_array(at_hipArrayDestroy, array); }
