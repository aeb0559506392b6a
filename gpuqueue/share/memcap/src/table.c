/* A hash table in shards, each with a lock of its own: open addressing (Knuth,
 * vol. 3, 6.4). What is taken out leaves its key, for allocators give the same address
 * out again, until the shard is written anew. Memory comes from mmap: the program's malloc may be
 * anybody's, and may be what is running right now.
 */
#include "table.h"

#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>

#define TAKEN UINT64_MAX /* value of what was taken out */

void gq_lock_slowly(uint32_t *lock) {
    for (unsigned spins = 1; __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) != 0;)
        while (__atomic_load_n(lock, __ATOMIC_RELAXED) != 0)
            if (spins++ % 64 == 0) sched_yield(); /* its holder may have no processor */
}

/* Small allocations lie side by side, 512 bytes apart, and are often freed in the order in which
 * they were made. So the entries of 128 KiB share a page of the table, in which the last bits of the
 * address choose, and who finds the place taken goes to the same one of the next page. The
 * multiplier is 2^64 over the golden ratio (Knuth, 6.4). The top bits choose the shard. */
#define PAGE 256

static inline uint64_t hash(uint64_t key) {
    /* handles are addresses of the driver's own memory, multiples of 16 */
    uint64_t near = key >> 60 == GQ_HANDLE ? key >> 4 : key >> 9;
    return ((key >> 17) * 0x9e3779b97f4a7c15ull) ^ ((near & (PAGE - 1)) << 26);
}

static inline struct gq_shard *shard_of(struct gq_table *table, uint64_t hashed) {
    return &table->shards[hashed >> 58];
}

/* Where the key is, or the empty place where it would be. */
static inline uint64_t find(const struct gq_shard *shard, uint64_t key, uint64_t hashed) {
    uint64_t at = (hashed << 6 >> 32) & (shard->capacity - 1);
    while (shard->entries[at].key != key && shard->entries[at].key != 0) {
        at += PAGE;
        if (at >= shard->capacity) at = (at + 1) & (PAGE - 1); /* after the last page, its neighbour */
    }
    return at;
}

/* Write the shard anew, without what was taken out, and larger if it is more than a quarter full. */
static int renew(struct gq_shard *shard) {
    struct gq_shard next = *shard;
    next.capacity = shard->capacity ? shard->capacity : PAGE;
    while (shard->live * 4 >= next.capacity) next.capacity *= 2;
    next.entries = mmap(NULL, next.capacity * sizeof(struct gq_entry), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (next.entries == MAP_FAILED) return 0;
    for (uint64_t at = 0; at < shard->capacity; at++) {
        struct gq_entry *entry = &shard->entries[at];
        if (entry->key != 0 && entry->value != TAKEN)
            next.entries[find(&next, entry->key, hash(entry->key))] = *entry;
    }
    if (shard->capacity) munmap(shard->entries, shard->capacity * sizeof(struct gq_entry));
    shard->entries = next.entries;
    shard->capacity = next.capacity;
    shard->filled = shard->live;
    return 1;
}

int gq_table_put(struct gq_table *table, struct gq_entry entry, struct gq_entry *was) {
    uint64_t hashed = hash(entry.key);
    struct gq_shard *shard = shard_of(table, hashed);
    gq_lock(&shard->lock);
    int room = (shard->filled + 1) * 2 <= shard->capacity || renew(shard);
    if (room) {
        struct gq_entry *place = &shard->entries[find(shard, entry.key, hashed)];
        int live = place->key != 0 && place->value != TAKEN;
        if (live) {
            *was = *place;
            room = 2;
        }
        shard->filled += place->key == 0;
        shard->live += !live;
        *place = entry;
    }
    gq_unlock(&shard->lock);
    return room;
}

/* Where the key is; NULL where it is not. */
static inline struct gq_entry *look(struct gq_shard *shard, uint64_t key, uint64_t hashed) {
    if (shard->capacity == 0) return NULL;
    struct gq_entry *entry = &shard->entries[find(shard, key, hashed)];
    return entry->key == key && entry->value != TAKEN ? entry : NULL;
}

static inline void take_out(struct gq_shard *shard, struct gq_entry *entry) {
    entry->value = TAKEN;
    shard->live--;
}

int gq_table_take(struct gq_table *table, uint64_t key, struct gq_entry *found) {
    uint64_t hashed = hash(key);
    struct gq_shard *shard = shard_of(table, hashed);
    gq_lock(&shard->lock);
    struct gq_entry *entry = look(shard, key, hashed);
    if (entry != NULL) {
        *found = *entry;
        take_out(shard, entry);
    }
    gq_unlock(&shard->lock);
    return entry != NULL;
}

int gq_table_get(struct gq_table *table, uint64_t key, struct gq_entry *found) {
    uint64_t hashed = hash(key);
    struct gq_shard *shard = shard_of(table, hashed);
    gq_lock(&shard->lock);
    struct gq_entry *entry = look(shard, key, hashed);
    if (entry != NULL) *found = *entry;
    gq_unlock(&shard->lock);
    return entry != NULL;
}

int gq_table_refer(struct gq_table *table, uint64_t key, int change, struct gq_entry *found) {
    uint64_t hashed = hash(key);
    struct gq_shard *shard = shard_of(table, hashed);
    int left = -1;
    gq_lock(&shard->lock);
    struct gq_entry *entry = look(shard, key, hashed);
    if (entry != NULL) {
        entry->value += (uint64_t)(int64_t)change << 6;
        *found = *entry;
        left = (int)gq_tag_of(entry);
        if (left == 0) take_out(shard, entry);
    }
    gq_unlock(&shard->lock);
    return left;
}

int gq_table_take_of(struct gq_table *table, uint32_t context, unsigned *shard_at, uint64_t *at,
                     struct gq_entry *found) {
    for (; *shard_at < GQ_SHARDS; (*shard_at)++, *at = 0) {
        struct gq_shard *shard = &table->shards[*shard_at];
        gq_lock(&shard->lock);
        for (; *at < shard->capacity; (*at)++) {
            struct gq_entry *entry = &shard->entries[*at];
            enum gq_kind kind = gq_kind_of(entry);
            if (kind < GQ_POINTER || kind > GQ_MIPMAP || entry->value == TAKEN ||
                gq_tag_of(entry) != context)
                continue;
            *found = *entry;
            take_out(shard, entry);
            gq_unlock(&shard->lock);
            return 1;
        }
        gq_unlock(&shard->lock);
    }
    return 0;
}
