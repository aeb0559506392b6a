/* A libcuda.so.1 without a GPU: it keeps the books of pretend cards, as far as the memory cap can
 * tell the difference. Every process has cards of its own, but what it holds of them is added up
 * in the file FAKE_CUDA_CARD, if there is one: per card 8 bytes in use and 8 bytes the most ever.
 *
 *   FAKE_CUDA_TOTAL      bytes of each card (64 GiB)
 *   FAKE_CUDA_STEP       bytes by which a pool grows (2 MiB)
 *   FAKE_CUDA_FAIL       cuMemAlloc of this size fails with error 999
 *   FAKE_CUDA_BLOCK      cuMemAlloc of this size makes the file FAKE_CUDA_AT and waits for it to go
 *   FAKE_CUDA_DISTINCT   cuGetProcAddress answers with other addresses than dlsym does
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICES 2
#define OOM 2
#define INVALID 1
#define NO_CONTEXT 201

typedef uint64_t u64;
typedef struct { int type, id; } location;
typedef struct { int type, handles; location place; } props;

struct context { int device, alive; };
struct stream { struct context *context; struct graph *capture; };
struct record { u64 size; int device; struct context *context; struct pool *pool; struct record *next; };
struct handle { u64 size; int device, refs, maps; };
struct mapping { u64 at, size; struct handle *handle; struct mapping *next; };
struct array { u64 size; int device; };
struct pool { int device, dead; u64 reserved, used, threshold; };
struct node { int type; u64 size; int device; struct graph *child; };
struct graph { struct node *nodes[64]; size_t count; };

static struct context primary[DEVICES] = {{0, 0}, {1, 0}};
static int retained[DEVICES];
static struct pool pools[DEVICES] = {{.device = 0}, {.device = 1}};
static u64 graph_reserved[DEVICES];
static u64 total = 64ull << 30, step = 2 << 20, fail_size, block_size, own_card[DEVICES * 2];
static u64 *card = own_card;
static const char *block_file;
static int distinct;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *region;
static u64 next_record;
static struct mapping *mappings;
static __thread struct context *current[8];
static __thread int depth;
static __thread struct record *freed;

#define REGION (4ull << 20)

static u64 number(const char *name, u64 otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void begin(void) {
    total = number("FAKE_CUDA_TOTAL", total);
    step = number("FAKE_CUDA_STEP", step);
    fail_size = number("FAKE_CUDA_FAIL", 0);
    block_size = number("FAKE_CUDA_BLOCK", 0);
    block_file = getenv("FAKE_CUDA_AT");
    distinct = getenv("FAKE_CUDA_DISTINCT") != NULL;
    region = mmap(NULL, REGION * 512, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const char *path = getenv("FAKE_CUDA_CARD");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0) {
        card = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
}

#include "fake_mps.h"
#include "fake_launch.h"

static int take(int device, u64 bytes) {
    if (!mps_takes(bytes)) return OOM;
    u64 now = __atomic_add_fetch(&card[device * 2], bytes, __ATOMIC_SEQ_CST);
    if (now > total) {
        __atomic_sub_fetch(&card[device * 2], bytes, __ATOMIC_SEQ_CST);
        __atomic_sub_fetch(&mps_used, bytes, __ATOMIC_SEQ_CST);
        return OOM;
    }
    u64 most = __atomic_load_n(&card[device * 2 + 1], __ATOMIC_SEQ_CST);
    while (now > most && !__atomic_compare_exchange_n(&card[device * 2 + 1], &most, now, 0,
                                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return 0;
}

static void give(int device, u64 bytes) {
    __atomic_sub_fetch(&mps_used, bytes, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&card[device * 2], bytes, __ATOMIC_SEQ_CST);
}

static u64 real_size(u64 bytes) {
    u64 grain = bytes > 1 << 20 ? 2 << 20 : 512;
    return (bytes + grain - 1) / grain * grain;
}

static struct context *now(void) { return depth ? current[depth - 1] : NULL; }

static void begin_all(void) { begin(); mps_begin(); }
int cuInit(unsigned flags) { (void)flags; pthread_once(&once, begin_all); return 0; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < DEVICES ? 0 : 101; }
int cuDeviceGetUuid(char *uuid, int device) {
    memset(uuid, 0, 16);
    uuid[15] = (char)(device + 1);
    return 0;
}
/* cuDeviceGetUuid_v2 is missing, as in drivers before CUDA 11.4 */
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = total; return 0; }

/* ---- contexts ---- */

int cuCtxGetCurrent(struct context **context) { *context = now(); return 0; }
int cuCtxGetDevice(int *device) {
    if (!now()) return NO_CONTEXT;
    *device = now()->device;
    return 0;
}
int cuCtxPushCurrent_v2(struct context *context) { current[depth++] = context; return 0; }
int cuCtxPopCurrent_v2(struct context **context) { *context = current[--depth]; return 0; }
int cuCtxSetCurrent(struct context *context) { depth = 1; current[0] = context; return 0; }
int cuCtxCreate_v2(struct context **context, unsigned flags, int device) {
    (void)flags;
    *context = calloc(1, sizeof **context);
    (*context)->device = device;
    (*context)->alive = 1;
    return cuCtxSetCurrent(*context);
}
static void end_context(struct context *context) {
    pthread_mutex_lock(&lock);
    for (u64 at = 0; at < next_record; at++) {
        struct record *record = (struct record *)(region + at * 512);
        if (record->context != context || record->size == 0) continue;
        if (!record->pool) give(record->device, real_size(record->size));
        record->size = 0;
    }
    context->alive = 0;
    pthread_mutex_unlock(&lock);
}
int cuCtxDestroy_v2(struct context *context) { end_context(context); return 0; }
int cuCtxDestroy(struct context *context) { return cuCtxDestroy_v2(context); }
int cuDevicePrimaryCtxRetain(struct context **context, int device) {
    retained[device]++;
    primary[device].alive = 1;
    *context = &primary[device];
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    if (retained[device] == 0) return 201;
    if (--retained[device] == 0) end_context(&primary[device]);
    return 0;
}
int cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }
int cuDevicePrimaryCtxReset_v2(int device) {
    end_context(&primary[device]);
    give(device, pools[device].reserved);
    pools[device].reserved = pools[device].used = 0;
    retained[device] = 0;
    return 0;
}
int cuDevicePrimaryCtxReset(int device) { return cuDevicePrimaryCtxReset_v2(device); }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = primary[device].alive;
    return 0;
}

/* ---- linear memory ---- */

static u64 make_record(u64 bytes, int device, struct pool *pool) {
    struct record *record = freed;
    if (record) {
        freed = record->next;
    } else {
        u64 at = __atomic_fetch_add(&next_record, 1, __ATOMIC_SEQ_CST);
        record = (struct record *)(region + at * 512);
    }
    record->device = device;
    record->context = now();
    record->pool = pool;
    __atomic_store_n(&record->size, bytes, __ATOMIC_RELEASE);
    return (u64)record;
}

static struct record *record_of(u64 pointer) {
    if (pointer < (u64)region || pointer >= (u64)region + REGION * 512) return NULL;
    struct record *record = (struct record *)pointer;
    return record->size ? record : NULL;
}

static void drop_record(struct record *record) {
    __atomic_store_n(&record->size, 0, __ATOMIC_RELEASE);
    record->next = freed;
    freed = record;
}

static void wait_if_asked(u64 bytes) {
    if (bytes != block_size || block_size == 0) return;
    close(open(block_file, O_CREAT | O_WRONLY, 0600));
    while (access(block_file, F_OK) == 0) usleep(1000);
}

int cuMemAlloc_v2(u64 *pointer, size_t bytes) {
    if (!now()) return NO_CONTEXT;
    if (bytes == 0) return INVALID;
    wait_if_asked(bytes);
    if (bytes == fail_size) return 999;
    if (bytes > total || take(now()->device, real_size(bytes))) return OOM;
    *pointer = make_record(bytes, now()->device, NULL);
    return 0;
}
int cuMemAllocManaged(u64 *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return cuMemAlloc_v2(pointer, bytes);
}
int cuMemAllocPitch_v2(u64 *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(pointer, *pitch * height);
}
static int pool_free(struct record *record) {
    pthread_mutex_lock(&lock);
    record->pool->used -= real_size(record->size);
    pthread_mutex_unlock(&lock);
    drop_record(record);
    return 0;
}
int cuMemFree_v2(u64 pointer) {
    struct record *record = record_of(pointer);
    if (!record) return INVALID;
    if (record->pool) return pool_free(record);
    give(record->device, real_size(record->size));
    drop_record(record);
    return 0;
}
/* A free that nobody can see. */
int fakeFree(u64 pointer) { return cuMemFree_v2(pointer); }
int cuMemGetInfo_v2(size_t *left, size_t *all) {
    if (!now()) return NO_CONTEXT;
    *left = total - card[now()->device * 2];
    *all = total;
    return 0;
}
int cuIpcOpenMemHandle_v2(u64 *pointer, char handle[64], unsigned flags) {
    (void)handle, (void)flags;
    *pointer = 0x7e0000000000;
    return 0;
}

/* ---- arrays ---- */

static int make_array(struct array **array, u64 bytes) {
    if (!now()) return NO_CONTEXT;
    u64 size = real_size((bytes + 65535) / 65536 * 65536); /* more than its elements need */
    if (take(now()->device, size)) return OOM;
    *array = malloc(sizeof **array);
    **array = (struct array){size, now()->device};
    return 0;
}
struct descriptor { size_t width, height; int format; unsigned channels; };
struct descriptor3 { size_t width, height, depth; int format; unsigned channels, flags; };
int cuArrayCreate_v2(struct array **array, const struct descriptor *d) {
    return make_array(array, d->width * (d->height ? d->height : 1) * d->channels * 4);
}
int cuArray3DCreate_v2(struct array **array, const struct descriptor3 *d) {
    if (d->flags & 0xc0) return make_array(array, 0);
    return make_array(array, d->width * (d->height ? d->height : 1) * (d->depth ? d->depth : 1) *
                                 d->channels * 4);
}
int cuMipmappedArrayCreate(struct array **array, const struct descriptor3 *d, unsigned levels) {
    u64 bytes = d->width * (d->height ? d->height : 1) * d->channels * 4;
    return make_array(array, levels > 1 ? bytes + bytes / 2 : bytes);
}
int cuArrayDestroy(struct array *array) {
    give(array->device, array->size);
    free(array);
    return 0;
}
int cuMipmappedArrayDestroy(struct array *array) { return cuArrayDestroy(array); }
struct needs { size_t size, alignment; unsigned reserved[4]; };
int cuArrayGetMemoryRequirements(struct needs *needs, struct array *array, int device) {
    (void)device;
    needs->size = array->size;
    return 0;
}
int cuMipmappedArrayGetMemoryRequirements(struct needs *needs, struct array *array, int device) {
    return cuArrayGetMemoryRequirements(needs, array, device);
}

/* ---- handles ---- */

int cuMemCreate(u64 *handle, size_t bytes, const props *wanted, unsigned long long flags) {
    (void)flags;
    if (bytes % (2 << 20)) return INVALID;
    int device = wanted->place.type == 1 ? wanted->place.id : -1;
    if (device >= 0 && take(device, bytes)) return OOM;
    struct handle *made = malloc(sizeof *made);
    *made = (struct handle){bytes, device, 1, 0};
    *handle = (u64)made;
    return 0;
}
static void drop_handle(struct handle *handle) {
    if (handle->refs || handle->maps) return;
    if (handle->device >= 0) give(handle->device, handle->size);
    free(handle);
}
int cuMemRelease(u64 handle) {
    struct handle *of = (struct handle *)handle;
    if (of->refs == 0) return INVALID;
    of->refs--;
    drop_handle(of);
    return 0;
}
int cuMemMap(u64 at, size_t bytes, size_t offset, u64 handle, unsigned long long flags) {
    (void)offset, (void)flags;
    pthread_mutex_lock(&lock);
    struct mapping *made = malloc(sizeof *made);
    *made = (struct mapping){at, bytes, (struct handle *)handle, mappings};
    mappings = made;
    made->handle->maps++;
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuMemUnmap(u64 at, size_t bytes) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *it = *link;
        if (it->at < at || it->at >= at + bytes) { link = &it->next; continue; }
        *link = it->next;
        it->handle->maps--;
        drop_handle(it->handle);
        free(it);
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found ? 0 : INVALID;
}
int cuMemRetainAllocationHandle(u64 *handle, void *address) {
    for (struct mapping *it = mappings; it; it = it->next)
        if ((u64)address >= it->at && (u64)address < it->at + it->size) {
            it->handle->refs++;
            *handle = (u64)it->handle;
            return 0;
        }
    return INVALID;
}
int cuMemImportFromShareableHandle(u64 *handle, void *shared, int type) {
    (void)type;
    struct handle *own = shared;
    if (own) {
        own->refs++;
        *handle = (u64)own;
        return 0;
    }
    own = malloc(sizeof *own);
    *own = (struct handle){2 << 20, -1, 1, 0};
    *handle = (u64)own;
    return 0;
}

/* ---- pools and streams ---- */

int cuStreamCreate(struct stream **stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = now();
    return 0;
}
int cuStreamGetCtx(struct stream *stream, struct context **context) {
    *context = stream->context;
    return 0;
}
int cuStreamIsCapturing(struct stream *stream, int *status) {
    *status = (u64)stream > 2 && stream->capture != NULL;
    return 0;
}
int cuStreamBeginCapture_v2(struct stream *stream, int mode) {
    (void)mode;
    stream->capture = calloc(1, sizeof *stream->capture);
    return 0;
}
int cuStreamEndCapture(struct stream *stream, struct graph **graph) {
    *graph = stream->capture;
    stream->capture = NULL;
    return 0;
}
int cuDeviceGetMemPool(struct pool **pool, int device) { *pool = &pools[device]; return 0; }
int cuMemPoolCreate(struct pool **pool, const props *wanted) {
    *pool = calloc(1, sizeof **pool);
    (*pool)->device = wanted->place.type == 1 ? wanted->place.id : -1;
    return 0;
}
static void shrink(struct pool *pool, u64 keep) {
    pthread_mutex_lock(&lock);
    u64 left = pool->used > keep ? pool->used : keep;
    if (left < pool->reserved) {
        if (pool->device >= 0) give(pool->device, pool->reserved - left);
        pool->reserved = left;
    }
    pthread_mutex_unlock(&lock);
}
int cuMemPoolTrimTo(struct pool *pool, size_t keep) { shrink(pool, keep); return 0; }
int cuMemPoolDestroy(struct pool *pool) {
    shrink(pool, 0);
    pool->dead = 1;
    return 0;
}
int cuMemPoolSetAttribute(struct pool *pool, int which, u64 *value) {
    if (which == 4) pool->threshold = *value;
    return 0;
}
int cuMemPoolGetAttribute(struct pool *pool, int which, u64 *value) {
    if (pool->dead) return INVALID;
    if (which == 5) *value = pool->reserved;
    if (which == 7) *value = pool->used;
    return 0;
}
int cuMemAllocFromPoolAsync(u64 *pointer, size_t bytes, struct pool *pool, struct stream *stream) {
    if ((u64)stream > 2 && stream->capture) {
        struct node *node = calloc(1, sizeof *node);
        *node = (struct node){10, bytes, pool->device, NULL};
        stream->capture->nodes[stream->capture->count++] = node;
        *pointer = 0x7d0000000000;
        return 0;
    }
    u64 size = real_size(bytes);
    pthread_mutex_lock(&lock);
    int failed = 0;
    if (pool->reserved - pool->used < size) {
        u64 more = size - (pool->reserved - pool->used);
        more = (more + step - 1) / step * step;
        failed = pool->device >= 0 && take(pool->device, more);
        if (!failed) pool->reserved += more;
    }
    if (!failed) pool->used += size;
    pthread_mutex_unlock(&lock);
    if (failed) return OOM;
    *pointer = make_record(bytes, pool->device, pool);
    return 0;
}
int cuMemAllocAsync(u64 *pointer, size_t bytes, struct stream *stream) {
    int device = (u64)stream > 2 ? stream->context->device : now() ? now()->device : -1;
    return device < 0 ? NO_CONTEXT : cuMemAllocFromPoolAsync(pointer, bytes, &pools[device], stream);
}
int cuMemFreeAsync(u64 pointer, struct stream *stream) {
    (void)stream;
    return cuMemFree_v2(pointer);
}
int cuMemAllocAsync_ptsz(u64 *p, size_t n, struct stream *s) { return cuMemAllocAsync(p, n, s); }
int cuMemFreeAsync_ptsz(u64 p, struct stream *s) { return cuMemFreeAsync(p, s); }
int cuMemAllocFromPoolAsync_ptsz(u64 *p, size_t n, struct pool *o, struct stream *s) {
    return cuMemAllocFromPoolAsync(p, n, o, s);
}
int cuCtxSynchronize(void) {
    launch_wait();
    for (int at = 0; at < DEVICES; at++) shrink(&pools[at], pools[at].threshold);
    return 0;
}
int cuCtxSynchronize_v2(struct context *context) { (void)context; return cuCtxSynchronize(); }
int cuStreamSynchronize(struct stream *stream) { (void)stream; return cuCtxSynchronize(); }
int cuStreamSynchronize_ptsz(struct stream *stream) { (void)stream; return cuCtxSynchronize(); }
int cuEventSynchronize(void *event) { (void)event; return cuCtxSynchronize(); }

/* ---- graphs ---- */

struct alloc_node { props pool; char rest[72]; void *access; size_t count, bytes; u64 pointer; };
int cuGraphCreate(struct graph **graph, unsigned flags) {
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return 0;
}
int cuGraphAddMemAllocNode(struct node **node, struct graph *graph, void *after, size_t count,
                           struct alloc_node *wanted) {
    (void)after, (void)count;
    *node = calloc(1, sizeof **node);
    **node = (struct node){10, wanted->bytes, wanted->pool.place.id, NULL};
    graph->nodes[graph->count++] = *node;
    wanted->pointer = 0x7c0000000000;
    return 0;
}
int cuGraphAddChildGraphNode(struct node **node, struct graph *graph, void *after, size_t count,
                             struct graph *child) {
    (void)after, (void)count;
    *node = calloc(1, sizeof **node);
    **node = (struct node){4, 0, 0, child};
    graph->nodes[graph->count++] = *node;
    return 0;
}
int cuGraphGetNodes(struct graph *graph, struct node **nodes, size_t *count) {
    if (nodes) memcpy(nodes, graph->nodes, *count * sizeof *nodes);
    *count = graph->count;
    return 0;
}
int cuGraphNodeGetType(struct node *node, int *type) { *type = node->type; return 0; }
int cuGraphChildGraphNodeGetGraph(struct node *node, struct graph **graph) {
    *graph = node->child;
    return 0;
}
int cuGraphMemAllocNodeGetParams(struct node *node, struct alloc_node *params) {
    memset(params, 0, sizeof *params);
    params->pool.place = (location){1, node->device};
    params->bytes = node->size;
    return 0;
}
int cuGraphInstantiateWithFlags(struct graph **exec, struct graph *graph, unsigned long long flags) {
    (void)flags;
    *exec = malloc(sizeof **exec);
    **exec = *graph;
    return 0;
}
int cuGraphInstantiate_v2(struct graph **exec, struct graph *graph, void *error, char *log, size_t size) {
    (void)error, (void)log, (void)size;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
int cuGraphInstantiate(struct graph **exec, struct graph *graph, void *error, char *log, size_t size) {
    return cuGraphInstantiate_v2(exec, graph, error, log, size);
}
int cuGraphInstantiateWithParams(struct graph **exec, struct graph *graph, void *params) {
    (void)params;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
int cuGraphInstantiateWithParams_ptsz(struct graph **exec, struct graph *graph, void *params) {
    return cuGraphInstantiateWithParams(exec, graph, params);
}
static u64 needs_of(struct graph *graph, int *device) {
    u64 sum = 0;
    for (size_t at = 0; at < graph->count; at++) {
        if (graph->nodes[at]->type == 4) sum += needs_of(graph->nodes[at]->child, device);
        if (graph->nodes[at]->type != 10) continue;
        sum += real_size(graph->nodes[at]->size);
        *device = graph->nodes[at]->device;
    }
    return sum;
}
int cuGraphLaunch(struct graph *exec, struct stream *stream) {
    (void)stream;
    int device = 0;
    u64 sum = needs_of(exec, &device);
    if (sum <= graph_reserved[device]) return 0;
    if (take(device, sum - graph_reserved[device])) return OOM;
    graph_reserved[device] = sum;
    return 0;
}
int cuGraphLaunch_ptsz(struct graph *exec, struct stream *stream) { return cuGraphLaunch(exec, stream); }
int cuGraphUpload(struct graph *exec, struct stream *stream) { return cuGraphLaunch(exec, stream); }
int cuGraphUpload_ptsz(struct graph *exec, struct stream *stream) { return cuGraphLaunch(exec, stream); }
int cuGraphExecDestroy(struct graph *exec) { free(exec); return 0; }
int cuDeviceGetGraphMemAttribute(int device, int which, u64 *value) {
    if (which == 2) *value = graph_reserved[device];
    return 0;
}
int cuDeviceGraphMemTrim(int device) {
    give(device, graph_reserved[device]);
    graph_reserved[device] = 0;
    return 0;
}

/* ---- looking up ---- */

/* Another address of a function: a jump to it. */
static void *twin(void *function) {
    static char *page;
    static size_t at;
    if (!page) page = mmap(NULL, 65536, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static struct { void *function, *twin; } known[256];
    for (size_t i = 0; i < at; i++)
        if (known[i].function == function) return known[i].twin;
    unsigned char *code = (unsigned char *)page + at * 32;
#if defined(__x86_64__)
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
    memcpy(jump + 2, &function, 8);
    memcpy(code, jump, 12);
#else
    uint32_t jump[4] = {0x58000050, 0xd61f0200};
    memcpy(jump + 2, &function, 8);
    memcpy(code, jump, 16);
    __builtin___clear_cache((char *)code, (char *)code + 16);
#endif
    known[at].function = function;
    known[at++].twin = code;
    return code;
}

/* Names in the library, newest first, with the version from which each is what one is given. */
static const struct { const char *base, *name; int since; } versions[] = {
    {"cuMemAlloc", "cuMemAlloc_v2", 3020}, {"cuMemFree", "cuMemFree_v2", 3020},
    {"cuMemAllocPitch", "cuMemAllocPitch_v2", 3020}, {"cuMemGetInfo", "cuMemGetInfo_v2", 3020},
    {"cuDeviceTotalMem", "cuDeviceTotalMem_v2", 3020}, {"cuArrayCreate", "cuArrayCreate_v2", 3020},
    {"cuArray3DCreate", "cuArray3DCreate_v2", 3020}, {"cuCtxDestroy", "cuCtxDestroy_v2", 4000},
    {"cuCtxCreate", "cuCtxCreate_v2", 3020}, {"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000},
    {"cuGraphInstantiate", "cuGraphInstantiate_v2", 11000},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
    {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", 11000},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000}, {"cuCtxSynchronize", "cuCtxSynchronize_v2", 13000},
};

#define FUNCTIONS(X) \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid) \
    X(cuDeviceTotalMem_v2) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent_v2) \
    X(cuCtxPopCurrent_v2) X(cuCtxSetCurrent) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) \
    X(cuCtxDestroy) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2) \
    X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset_v2) X(cuDevicePrimaryCtxReset) \
    X(cuDevicePrimaryCtxGetState) X(cuMemAlloc_v2) X(cuMemAllocManaged) \
    X(cuMemAllocPitch_v2) X(cuMemFree_v2) X(cuMemGetInfo_v2) X(cuIpcOpenMemHandle_v2) \
    X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuMipmappedArrayCreate) X(cuArrayDestroy) \
    X(cuMipmappedArrayDestroy) X(cuArrayGetMemoryRequirements) \
    X(cuMipmappedArrayGetMemoryRequirements) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) \
    X(cuMemUnmap) X(cuMemRetainAllocationHandle) X(cuMemImportFromShareableHandle) \
    X(cuStreamCreate) X(cuStreamGetCtx) X(cuStreamIsCapturing) X(cuStreamBeginCapture_v2) \
    X(cuStreamEndCapture) X(cuDeviceGetMemPool) X(cuMemPoolCreate) X(cuMemPoolTrimTo) \
    X(cuMemPoolDestroy) X(cuMemPoolSetAttribute) X(cuMemPoolGetAttribute) \
    X(cuMemAllocFromPoolAsync) X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemAllocAsync_ptsz) \
    X(cuMemFreeAsync_ptsz) X(cuMemAllocFromPoolAsync_ptsz) X(cuCtxSynchronize) X(cuCtxSynchronize_v2) \
    X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuEventSynchronize) \
    X(cuGraphCreate) X(cuGraphAddMemAllocNode) X(cuGraphAddChildGraphNode) \
    X(cuGraphGetNodes) X(cuGraphNodeGetType) X(cuGraphChildGraphNodeGetGraph) \
    X(cuGraphMemAllocNodeGetParams) X(cuGraphInstantiateWithFlags) X(cuGraphInstantiate_v2) \
    X(cuGraphInstantiate) X(cuGraphInstantiateWithParams) \
    X(cuGraphInstantiateWithParams_ptsz) X(cuGraphLaunch) X(cuGraphLaunch_ptsz) \
    X(cuGraphUpload) X(cuGraphUpload_ptsz) X(cuGraphExecDestroy) \
    X(cuDeviceGetGraphMemAttribute) X(cuDeviceGraphMemTrim)

int cuGetProcAddress(const char *, void **, int, u64);
int cuGetProcAddress_v2(const char *, void **, int, u64, int *);

/* Not by dlsym, which is what is being tested. */
static void *named(const char *name) {
    static const struct { const char *name; void *function; } all[] = {
#define X(name) {#name, (void *)name},
        FUNCTIONS(X) X(cuGetProcAddress) X(cuGetProcAddress_v2)
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++)
        if (strcmp(all[at].name, name) == 0) return all[at].function;
    return NULL;
}

int cuMemAlloc_v9(u64 *pointer) { *pointer = 9; return 0; } /* a version of the future */

static int look_up(const char *base, void **found, int version, u64 flags) {
    char name[96];
    *found = NULL;
    if (version >= 99000 && strcmp(base, "cuMemAlloc") == 0) {
        *found = (void *)cuMemAlloc_v9;
        return 0;
    }
    snprintf(name, sizeof name, "%s", base);
    for (size_t at = 0; at < sizeof versions / sizeof *versions; at++)
        if (strcmp(versions[at].base, base) == 0 && version >= versions[at].since) {
            snprintf(name, sizeof name, "%s", versions[at].name);
            break;
        }
    if (flags & 2) {
        char special[112];
        snprintf(special, sizeof special, "%s_ptsz", name);
        *found = named(special);
    }
    if (!*found) *found = named(name);
    if (*found && distinct) *found = twin(*found);
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *base, void **found, int version, u64 flags) {
    return look_up(base, found, version > 11080 ? 11080 : version, flags);
}
int cuGetProcAddress_v2(const char *base, void **found, int version, u64 flags, int *status) {
    int result = look_up(base, found, version, flags);
    if (status) *status = result ? 1 : 0;
    return result;
}
