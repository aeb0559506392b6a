/* This process's part: its slot, which GPU is which, and charging. */
#include "gq.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef GQ_WIPE_ON_FORK /* a test builds it with one that the kernel does not know */
#define GQ_WIPE_ON_FORK 18 /* MADV_WIPEONFORK, which older headers lack */
#endif

struct gq_ledger *gq_the_ledger;

struct gq_state *gq_ready_state; /* the state, if the kernel clears it in a forked child */

static struct gq_state *the_state;
static int closed; /* it has been tried: this process has no cap */

/* No constructor does this: the library must cost nothing in programs that never touch a GPU. And
 * no lock: a child that is forked meanwhile would find it held by a thread that it has not. */
static struct gq_state *begin(void) {
    if (gq_is_late()) return NULL; /* not yet: CUDA has not begun */
    const char *path = getenv("GPUQUEUE_MEMCAP");
    struct gq_ledger *ledger = path ? gq_ledger_open(path) : NULL, *no_ledger = NULL;
    struct gq_state *state = MAP_FAILED, *no_state = NULL;
    if (ledger != NULL)
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED) {
        __atomic_store_n(&closed, 1, __ATOMIC_RELEASE);
        return NULL;
    }
    state->pid = getpid();
    int cleared = madvise(state, sizeof *state, GQ_WIPE_ON_FORK) == 0;
    /* of two threads that come here at once one is late; its mapping of the ledger may stay */
    __atomic_compare_exchange_n(&gq_the_ledger, &no_ledger, ledger, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (!__atomic_compare_exchange_n(&the_state, &no_state, state, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        munmap(state, sizeof *state);
        return no_state;
    }
    if (cleared) __atomic_store_n(&gq_ready_state, state, __ATOMIC_RELEASE);
    return state;
}

struct gq_state *gq_open_slowly(void) {
    struct gq_state *state = __atomic_load_n(&the_state, __ATOMIC_ACQUIRE);
    if (state == NULL) return __atomic_load_n(&closed, __ATOMIC_ACQUIRE) ? NULL : begin();
    /* Linux before 4.14 does not clear it */
    if (__atomic_load_n(&gq_ready_state, __ATOMIC_ACQUIRE) == NULL && state->pid != getpid()) {
        memset(state, 0, sizeof *state);
        state->pid = getpid();
    }
    return state;
}

/* ---- which GPU ---- */

static int look_up(CUdevice device) {
    uint8_t uuid[16];
    /* the second form tells a MIG instance's own */
    if (GQ_CALL(GQ_cuDeviceGetUuid_v2, (void *, CUdevice), uuid, device) != CUDA_SUCCESS &&
        GQ_CALL(GQ_cuDeviceGetUuid, (void *, CUdevice), uuid, device) != CUDA_SUCCESS)
        return -2;
    for (unsigned index = 0; index < gq_book()->gpus; index++)
        if (memcmp(gq_book()->gpu[index].uuid, uuid, sizeof uuid) == 0) return (int)index;
    return -1;
}

int gq_gpu_of_device(struct gq_state *state, CUdevice device) {
    if (device < 0 || device >= (int)GQ_MAX_GPUS) return -1;
    uint8_t known = __atomic_load_n(&state->gpus[device], __ATOMIC_RELAXED);
    if (__builtin_expect(known != 0, 1)) return known - 2;
    int index = look_up(device);
    if (index >= -1) __atomic_store_n(&state->gpus[device], (uint8_t)(index + 2), __ATOMIC_RELAXED);
    return index < 0 ? -1 : index;
}

static uint32_t number_of(struct gq_state *state, CUcontext context) {
    uint32_t number = 0, empty = 0;
    gq_lock(&state->context_lock);
    for (uint32_t at = GQ_MAX_CONTEXTS; at > 0 && number == 0; at--) {
        if (state->context[at - 1] == context) number = at;
        if (state->context[at - 1] == NULL) empty = at;
    }
    if (number == 0 && empty != 0) state->context[(number = empty) - 1] = context;
    gq_unlock(&state->context_lock);
    return number;
}

uint32_t gq_context_end(struct gq_state *state, CUcontext context) {
    uint32_t number = 0;
    gq_lock(&state->context_lock);
    for (uint32_t at = GQ_MAX_CONTEXTS; at > 0 && context != NULL; at--)
        if (state->context[at - 1] == context) {
            number = at;
            state->context[at - 1] = NULL;
        }
    __atomic_fetch_add(&state->contexts, 1, __ATOMIC_ACQ_REL);
    gq_unlock(&state->context_lock);
    return number;
}

/* The current context's device takes a second call to the driver, so each thread keeps the last. */
static __thread struct {
    CUcontext context;
    uint32_t contexts, number;
    int gpu;
    CUdevice device;
} last __attribute__((tls_model("initial-exec")));

int gq_gpu_of_current(struct gq_state *state, uint32_t *number) {
    CUcontext context = NULL;
    *number = 0;
    if (GQ_CALL(GQ_cuCtxGetCurrent, (CUcontext *), &context) != CUDA_SUCCESS || context == NULL)
        return -1;
    uint32_t contexts = __atomic_load_n(&state->contexts, __ATOMIC_ACQUIRE) + 1;
    if (__builtin_expect(last.context != context || last.contexts != contexts, 0)) {
        CUdevice device;
        if (GQ_CALL(GQ_cuCtxGetDevice, (CUdevice *), &device) != CUDA_SUCCESS) return -1;
        last.gpu = gq_gpu_of_device(state, device);
        last.device = device;
        last.number = number_of(state, context);
        last.contexts = contexts;
        last.context = context;
    }
    *number = last.number;
    return last.gpu;
}

int gq_gpu_of_stream(struct gq_state *state, CUstream stream, CUdevice *device) {
    CUcontext wanted = NULL;
    uint32_t number;
    int gpu = gq_gpu_of_current(state, &number);
    *device = last.device;
    if ((uintptr_t)stream <= 2) return gpu; /* a default stream is of the current context */
    if (GQ_CALL(GQ_cuStreamGetCtx, (CUstream, CUcontext *), stream, &wanted) != CUDA_SUCCESS ||
        wanted == last.context)
        return gpu;
    if (GQ_CALL(GQ_cuCtxPushCurrent_v2, (CUcontext), wanted) != CUDA_SUCCESS) return gpu;
    if (GQ_CALL(GQ_cuCtxGetDevice, (CUdevice *), device) == CUDA_SUCCESS)
        gpu = gq_gpu_of_device(state, *device);
    GQ_CALL(GQ_cuCtxPopCurrent_v2, (CUcontext *), &wanted);
    return gpu;
}

/* ---- charging ---- */

#define BLOCK (2ull << 20)

/* The driver maps memory in blocks of 2 MiB. Small allocations share one, so charging each of them
 * a block of its own would refuse what fits; above half a block each has its own. */
uint64_t gq_units(uint64_t bytes) {
    if (bytes > (uint64_t)GQ_NO_UNITS << GQ_UNIT_SHIFT) return GQ_NO_UNITS;
    uint64_t step = bytes > BLOCK / 2 ? BLOCK : 1ull << GQ_UNIT_SHIFT;
    uint64_t units = ((bytes + step - 1) & ~(step - 1)) >> GQ_UNIT_SHIFT;
    return units < GQ_NO_UNITS ? units : GQ_NO_UNITS;
}

static int claim(struct gq_state *state) {
    gq_lock(&state->begin);
    if (state->slot == 0) {
        int slot = gq_slot_claim(gq_book(), gq_identity());
        __atomic_store_n(&state->slot, (uint32_t)(slot + 1), __ATOMIC_RELEASE);
    }
    gq_unlock(&state->begin);
    return (int)__atomic_load_n(&state->slot, __ATOMIC_ACQUIRE) - 1;
}

static inline int slot_of(struct gq_state *state) {
    uint32_t slot = __atomic_load_n(&state->slot, __ATOMIC_ACQUIRE);
    return __builtin_expect(slot != 0, 1) ? (int)slot - 1 : claim(state);
}

int gq_try_charge(struct gq_state *state, int gpu, uint64_t units) {
    int slot = slot_of(state);
    return slot >= 0 && units < GQ_NO_UNITS &&
           gq_ledger_charge(gq_book(), (unsigned)gpu, (unsigned)slot, (uint32_t)units);
}

void gq_refuse(struct gq_state *state, int gpu, uint64_t units) {
    (void)state;
    gq_ledger_refused(gq_book(), (unsigned)gpu, units);
}

static int charge_slowly(struct gq_state *state, int gpu, uint64_t units) {
    /* what the dead held, and what pools have given back since they were last looked at */
    gq_ledger_sweep(gq_book());
    gq_settle_pools(state);
    if (gq_try_charge(state, gpu, units)) return 1;
    gq_refuse(state, gpu, units);
    return 0;
}

int gq_charge(struct gq_state *state, int gpu, uint64_t units) {
    if (__builtin_expect(gq_try_charge(state, gpu, units), 1)) return 1;
    return charge_slowly(state, gpu, units);
}

void gq_adjust(struct gq_state *state, int gpu, int64_t units) {
    if (units == 0 || gpu < 0) return;
    int slot = slot_of(state);
    if (slot >= 0) gq_ledger_adjust(gq_book(), (unsigned)gpu, (unsigned)slot, units);
}

void gq_note(struct gq_state *state, struct gq_entry entry) {
    struct gq_entry was;
    /* the driver gives an address out again, so what was there has been freed in a way that is not
     * known here */
    if (gq_table_put(&state->table, entry, &was) != 2) return;
    if (gq_kind_of(&was) <= GQ_HANDLE) gq_adjust(state, gq_gpu_of(&was), -gq_units_of(&was));
    if (gq_kind_of(&was) == GQ_ASYNC) gq_pool_freed(state, &was);
}

int gq_room(int gpu, uint64_t *room, uint64_t *limit) {
    const struct gq_gpu *entry = &gq_book()->gpu[gpu];
    *limit = __atomic_load_n(&entry->limit, __ATOMIC_RELAXED);
    if (*limit == UINT64_MAX) return 0;
    uint64_t used = __atomic_load_n(&entry->used, __ATOMIC_RELAXED) << GQ_UNIT_SHIFT;
    *room = used < *limit ? *limit - used : 0;
    return 1;
}
