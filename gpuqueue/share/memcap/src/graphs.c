/* Memory that CUDA graphs allocate while they run. The driver takes it when a graph is launched and
 * keeps it until it is trimmed, and graphs that do not run at once share it; so neither its nodes
 * nor its graphs may be summed up. A launch is refused where the graph's largest allocation does
 * not fit, and charged afterwards with what the driver says that graphs hold.
 */
#include "gq.h"

#include <sys/mman.h>

/* The largest allocation among a graph's nodes, and the device that it is on. */
static void look_through(CUgraph graph, int depth, uint64_t *largest, CUdevice *device) {
    size_t count = 0;
    if (GQ_CALL(GQ_cuGraphGetNodes, (CUgraph, CUnode *, size_t *), graph, NULL, &count) || count == 0)
        return;
    CUnode *nodes = mmap(NULL, count * sizeof *nodes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED) return;
    size_t size = count;
    if (GQ_CALL(GQ_cuGraphGetNodes, (CUgraph, CUnode *, size_t *), graph, nodes, &count)) count = 0;
    for (size_t at = 0; at < count && at < size; at++) {
        int type = 0;
        if (GQ_CALL(GQ_cuGraphNodeGetType, (CUnode, int *), nodes[at], &type)) continue;
        if (type == NODE_MEM_ALLOC) {
            union { CUalloc_node node; char room[512]; } wanted = {0};
            if (GQ_CALL(GQ_cuGraphMemAllocNodeGetParams, (CUnode, void *), nodes[at], &wanted)) continue;
            uint64_t units = gq_units(wanted.node.bytes);
            if (units <= *largest || wanted.node.pool.location.type != LOCATION_DEVICE) continue;
            *largest = units;
            *device = wanted.node.pool.location.id;
        } else if (type == NODE_GRAPH && depth > 0) {
            CUgraph child;
            if (!GQ_CALL(GQ_cuGraphChildGraphNodeGetGraph, (CUnode, CUgraph *), nodes[at], &child))
                look_through(child, depth - 1, largest, device);
        }
    }
    munmap(nodes, size * sizeof *nodes);
}

static CUresult instantiated(CUresult result, CUexec *exec, CUgraph graph) {
    struct gq_state *state = gq_open();
    if (result != CUDA_SUCCESS || state == NULL) return result;
    uint64_t largest = 0;
    CUdevice device = -1;
    look_through(graph, 8, &largest, &device);
    int gpu = largest ? gq_gpu_of_device(state, device) : -1;
    if (gpu < 0) return result;
    gq_note(state, gq_make(GQ_EXEC, (uint64_t)*exec, largest, gpu, (uint32_t)device));
    __atomic_store_n(&state->graphs, 1, __ATOMIC_RELAXED);
    return result;
}

/* Bring the charge for graphs to what the driver says; `ahead` of it is in the ledger already. */
static void settle(struct gq_state *state, int gpu, CUdevice device, uint64_t ahead) {
    uint64_t reserved = 0;
    gq_lock(&state->graph_lock);
    CUresult told = GQ_CALL(GQ_cuDeviceGetGraphMemAttribute, (CUdevice, int, void *), device,
                            GRAPH_RESERVED, &reserved);
    /* where it does not tell, what was asked for stays charged */
    uint64_t holds = told == CUDA_SUCCESS ? reserved >> GQ_UNIT_SHIFT : state->graph_charged[gpu] + ahead;
    int64_t more = (int64_t)(holds - state->graph_charged[gpu]);
    __atomic_store_n(&state->graph_charged[gpu], holds, __ATOMIC_RELAXED);
    gq_adjust(state, gpu, more - (int64_t)ahead);
    gq_unlock(&state->graph_lock);
}

static CUresult launch(int place, CUexec exec, CUstream stream) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    /* no more than this where no graph of this process allocates */
    if (state == NULL || !__atomic_load_n(&state->graphs, __ATOMIC_RELAXED) ||
        !gq_table_get(&state->table, gq_key(GQ_EXEC, (uint64_t)exec), &entry))
        return GQ_CALL(place, (CUexec, CUstream), exec, stream);
    int gpu = gq_gpu_of(&entry);
    uint64_t largest = (uint64_t)gq_units_of(&entry);
    uint64_t held = __atomic_load_n(&state->graph_charged[gpu], __ATOMIC_RELAXED);
    uint64_t ahead = largest > held ? largest - held : 0;
    if (ahead != 0 && !gq_charge(state, gpu, ahead)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = GQ_CALL(place, (CUexec, CUstream), exec, stream);
    settle(state, gpu, (CUdevice)gq_tag_of(&entry), ahead);
    return result;
}

GQ_EXPORT CUresult cuGraphAddMemAllocNode(CUnode *node, CUgraph graph, const CUnode *after,
                                          size_t count, CUalloc_node *wanted) {
    struct gq_state *state = gq_open();
    if (state != NULL && wanted != NULL && wanted->pool.location.type == LOCATION_DEVICE) {
        int gpu = gq_gpu_of_device(state, wanted->pool.location.id);
        uint64_t units = gq_units(wanted->bytes), room, limit;
        if (gpu >= 0 && gq_room(gpu, &room, &limit) && units > limit >> GQ_UNIT_SHIFT) {
            gq_refuse(state, gpu, units); /* it could never run */
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return GQ_CALL(GQ_cuGraphAddMemAllocNode_cuGraphAddMemAllocNode_at,
                   (CUnode *, CUgraph, const CUnode *, size_t, CUalloc_node *), node, graph, after,
                   count, wanted);
}

GQ_EXPORT CUresult cuGraphInstantiate(CUexec *exec, CUgraph graph, CUnode *error, char *log, size_t size) {
    return instantiated(GQ_CALL(GQ_cuGraphInstantiate_cuGraphInstantiate_at,
                                (CUexec *, CUgraph, CUnode *, char *, size_t), exec, graph, error, log,
                                size), exec, graph);
}

GQ_EXPORT CUresult cuGraphInstantiate_v2(CUexec *exec, CUgraph graph, CUnode *error, char *log,
                                         size_t size) {
    return instantiated(GQ_CALL(GQ_cuGraphInstantiate_cuGraphInstantiate_v2_at,
                                (CUexec *, CUgraph, CUnode *, char *, size_t), exec, graph, error, log,
                                size), exec, graph);
}

GQ_EXPORT CUresult cuGraphInstantiateWithFlags(CUexec *exec, CUgraph graph, unsigned long long flags) {
    return instantiated(GQ_CALL(GQ_cuGraphInstantiateWithFlags_cuGraphInstantiateWithFlags_at,
                                (CUexec *, CUgraph, unsigned long long), exec, graph, flags), exec,
                        graph);
}

GQ_EXPORT CUresult cuGraphInstantiateWithParams(CUexec *exec, CUgraph graph, void *wanted) {
    return instantiated(GQ_CALL(GQ_cuGraphInstantiateWithParams_cuGraphInstantiateWithParams_at,
                                (CUexec *, CUgraph, void *), exec, graph, wanted), exec, graph);
}

GQ_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUexec *exec, CUgraph graph, void *wanted) {
    return instantiated(GQ_CALL(GQ_cuGraphInstantiateWithParams_cuGraphInstantiateWithParams_ptsz_at,
                                (CUexec *, CUgraph, void *), exec, graph, wanted), exec, graph);
}

GQ_EXPORT CUresult cuGraphLaunch(CUexec exec, CUstream stream) {
    return launch(GQ_cuGraphLaunch_cuGraphLaunch_at, exec, stream);
}

GQ_EXPORT CUresult cuGraphLaunch_ptsz(CUexec exec, CUstream stream) {
    return launch(GQ_cuGraphLaunch_cuGraphLaunch_ptsz_at, exec, stream);
}

GQ_EXPORT CUresult cuGraphUpload(CUexec exec, CUstream stream) {
    return launch(GQ_cuGraphUpload_cuGraphUpload_at, exec, stream);
}

GQ_EXPORT CUresult cuGraphUpload_ptsz(CUexec exec, CUstream stream) {
    return launch(GQ_cuGraphUpload_cuGraphUpload_ptsz_at, exec, stream);
}

GQ_EXPORT CUresult cuGraphExecDestroy(CUexec exec) {
    struct gq_state *state = gq_open();
    struct gq_entry entry;
    int found = state != NULL && __atomic_load_n(&state->graphs, __ATOMIC_RELAXED) &&
                gq_table_take(&state->table, gq_key(GQ_EXEC, (uint64_t)exec), &entry);
    CUresult result = GQ_CALL(GQ_cuGraphExecDestroy_cuGraphExecDestroy_at, (CUexec), exec);
    if (found && result != CUDA_SUCCESS) gq_note(state, entry);
    return result;
}

GQ_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = GQ_CALL(GQ_cuDeviceGraphMemTrim_cuDeviceGraphMemTrim_at, (CUdevice), device);
    struct gq_state *state = gq_open();
    int gpu = state != NULL ? gq_gpu_of_device(state, device) : -1;
    if (result == CUDA_SUCCESS && gpu >= 0) settle(state, gpu, device, 0);
    return result;
}
