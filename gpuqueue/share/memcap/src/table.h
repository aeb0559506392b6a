/* What this process holds: from a pointer or handle to what was charged for it. */
#ifndef GQ_TABLE_H
#define GQ_TABLE_H

#include <stdint.h>

/* What `tag` says differs. */
enum gq_kind {
    GQ_POINTER = 1, /* linear memory; tag: the context's number */
    GQ_ARRAY,       /* likewise */
    GQ_MIPMAP,      /* likewise */
    GQ_HANDLE,      /* physical memory of cuMemCreate; tag counts handles and mappings */
    GQ_MAPPING,     /* of an address to memory; units: its length */
    GQ_MAPPED,      /* of the same address; the whole value is the handle */
    GQ_ASYNC,       /* from a pool; tag: the pool's place in the list of pools */
    GQ_EXEC,        /* an instantiated graph; units: its largest allocation; tag: its device */
};

#define GQ_TAG_BITS 26

/* 16 bytes, four to a cache line: with 100,000 of them it is the cache that counts */
struct gq_entry {
    uint64_t key;   /* kind << 60 | address; 0: empty */
    uint64_t value; /* units << 32 | tag << 6 | gpu */
};

static inline uint64_t gq_key(enum gq_kind kind, uint64_t address) {
    return (uint64_t)kind << 60 | (address & ((1ull << 60) - 1));
}

static inline struct gq_entry gq_make(enum gq_kind kind, uint64_t address, uint64_t units, int gpu,
                                      uint32_t tag) {
    return (struct gq_entry){gq_key(kind, address), units << 32 | (uint64_t)tag << 6 | (uint64_t)gpu};
}

static inline enum gq_kind gq_kind_of(const struct gq_entry *entry) { return entry->key >> 60; }
static inline int64_t gq_units_of(const struct gq_entry *entry) { return (int64_t)(entry->value >> 32); }
static inline int gq_gpu_of(const struct gq_entry *entry) { return (int)(entry->value & 63); }
static inline uint32_t gq_tag_of(const struct gq_entry *entry) {
    return (uint32_t)(entry->value >> 6) & ((1u << GQ_TAG_BITS) - 1);
}

#define GQ_SHARDS 64

struct gq_shard {
    uint32_t lock;
    uint32_t live;
    uint64_t filled;   /* places that have a key, of what was taken out too */
    uint64_t capacity; /* a power of two, or 0 */
    struct gq_entry *entries;
    uint8_t pad[32];
};

struct gq_table {
    struct gq_shard shards[GQ_SHARDS] __attribute__((aligned(64))); /* a cache line each */
};

/* Returns 0 where the system gives no memory for it, and 2 where the key was there already: `was`
 * is then what it had, which is gone without our having seen it. */
int gq_table_put(struct gq_table *table, struct gq_entry entry, struct gq_entry *was);

/* Take an entry out. Returns 0 where there is none. */
int gq_table_take(struct gq_table *table, uint64_t key, struct gq_entry *found);

int gq_table_get(struct gq_table *table, uint64_t key, struct gq_entry *found);

/* Change the tag as a count; at 0 the entry is taken out. Returns what is left, -1 where there is
 * no entry. */
int gq_table_refer(struct gq_table *table, uint64_t key, int change, struct gq_entry *found);

/* Take out the next entry that is of a context, from *shard and *at on. Returns 0 after the last. */
int gq_table_take_of(struct gq_table *table, uint32_t context, unsigned *shard, uint64_t *at,
                     struct gq_entry *found);

/* A lock between the threads of one process, which are stopped and killed together. */
void gq_lock_slowly(uint32_t *lock);

static inline void gq_lock(uint32_t *lock) {
    if (__builtin_expect(__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) != 0, 0)) gq_lock_slowly(lock);
}

static inline void gq_unlock(uint32_t *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

#endif
