/* Counting without locks, so that the count survives any process being killed or stopped anywhere.
 *
 * The difficulty: a total and a share of it are two words, and a process may be killed between
 * writing the one and the other; then nobody can tell whether the total includes its last step.
 * The way out used here is that of wait-free universal constructions (Herlihy, "A methodology for
 * implementing highly concurrent data objects", 1993): the word that holds the total also holds
 * the description of the last step, so both change at once, and whoever comes next completes it.
 *
 *   used   units that all processes hold
 *   op     whose step is pending and what it adds:
 *
 *          63      54  53  52       32 31             0
 *         | slot     | F | epoch      | delta, signed  |
 *
 * What slot s holds is charges[s], plus `delta` where op names s and charges[s] has an older epoch.
 * A process that finds its own slot in op just adds to `delta`: alone on its GPU it needs one
 * compare-and-swap per allocation. One that finds another's first freezes op (F), so that its
 * owner cannot add any more, then writes `delta` to that slot's charge and then puts its own
 * step in place. Each of these is one compare-and-swap that anybody may do and only one can:
 * the epoch, which counts the times that a slot's step was put in place, makes a late one fail.
 * The epoch wraps after 2 million; a process that was stopped between reading and writing these
 * words, while exactly that many steps of one slot went by with the very same charge, would
 * succeed wrongly.
 */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EPOCH_BITS 21
#define EPOCH_MASK ((1ull << EPOCH_BITS) - 1)
#define FROZEN (1ull << 53)
#define NO_LIMIT UINT64_MAX

typedef unsigned __int128 pair;

static inline uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static inline int swap(uint64_t *word, uint64_t old, uint64_t new) {
    return __atomic_compare_exchange_n(word, &old, new, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline unsigned slot_of(uint64_t op) { return (unsigned)(op >> 54); }
static inline uint64_t epoch_of(uint64_t op) { return op >> 32 & EPOCH_MASK; }
static inline int64_t delta_of(uint64_t op) { return (int32_t)(uint32_t)op; }

static inline uint64_t make_op(unsigned slot, uint64_t epoch, int64_t delta) {
    return (uint64_t)slot << 54 | (epoch & EPOCH_MASK) << 32 | (uint32_t)(int32_t)delta;
}

/* Both words at once. Fails, too, where they were read at different times. */
static inline int swap_both(struct gq_gpu *gpu, uint64_t used, uint64_t op, uint64_t new_used,
                            uint64_t new_op) {
    pair old = (pair)op << 64 | used, new = (pair)new_op << 64 | new_used;
    /* __sync, as gcc calls a library for __atomic with 16 bytes */
    return __sync_bool_compare_and_swap((pair *)&gpu->used, old, new);
}

/* Write a frozen step to its slot's charge, unless somebody has. */
static void settle(struct gq_gpu *gpu, uint64_t op) {
    uint64_t *charge = &gpu->charges[slot_of(op)];
    uint64_t old = load(charge), epoch = epoch_of(op);
    if ((old & EPOCH_MASK) == ((epoch - 1) & EPOCH_MASK)) {
        uint64_t units = (old >> EPOCH_BITS) + (uint64_t)delta_of(op);
        swap(charge, old, units << EPOCH_BITS | epoch);
    }
}

/* Freeze `op` if it is not, and settle it. Returns 0 where it has changed meanwhile. */
static int close_step(struct gq_gpu *gpu, uint64_t used, uint64_t *op) {
    if (!(*op & FROZEN)) {
        if (!swap_both(gpu, used, *op, used, *op | FROZEN)) return 0;
        *op |= FROZEN;
    }
    settle(gpu, *op);
    return 1;
}

static void note_peak(struct gq_gpu *gpu, uint64_t used) {
    uint64_t peak = __atomic_load_n(&gpu->peak, __ATOMIC_RELAXED);
    while (__builtin_expect(used > peak, 0) && !swap(&gpu->peak, peak, used)) peak = load(&gpu->peak);
}

/* One step of `slot`. Returns 0, with nothing changed, where `used` would pass `limit`. */
static int step(struct gq_gpu *gpu, unsigned slot, int64_t delta, const uint64_t *limit) {
    for (;;) {
        uint64_t op = load(&gpu->op), used = load(&gpu->used);
        uint64_t new_used = used + (uint64_t)delta;
        if (limit != NULL) {
            uint64_t bytes = __atomic_load_n(limit, __ATOMIC_RELAXED);
            if (bytes != NO_LIMIT && new_used > bytes >> GQ_UNIT_SHIFT) {
                if (load(&gpu->op) == op) return 0; /* else `used` may belong to another `op` */
                continue;
            }
        }
        if (!(op & FROZEN) && slot_of(op) == slot) {
            if (!swap_both(gpu, used, op, new_used, make_op(slot, epoch_of(op), delta_of(op) + delta)))
                continue;
        } else {
            if (!close_step(gpu, used, &op)) continue;
            uint64_t epoch = (load(&gpu->charges[slot]) & EPOCH_MASK) + 1;
            if (!swap_both(gpu, used, op, new_used, make_op(slot, epoch, delta))) continue;
        }
        if (delta > 0) note_peak(gpu, new_used);
        return 1;
    }
}

int gq_ledger_charge(struct gq_ledger *ledger, unsigned index, unsigned slot, uint32_t units) {
    struct gq_gpu *gpu = &ledger->gpu[index];
    return step(gpu, slot, units, &gpu->limit);
}

void gq_ledger_adjust(struct gq_ledger *ledger, unsigned index, unsigned slot, int64_t units) {
    if (units != 0) step(&ledger->gpu[index], slot, units, NULL);
}

void gq_ledger_refused(struct gq_ledger *ledger, unsigned index, uint64_t units) {
    struct gq_gpu *gpu = &ledger->gpu[index];
    __atomic_store_n(&gpu->last_refused, units, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gpu->refusals, 1, __ATOMIC_RELAXED);
}

uint64_t gq_ledger_holds(struct gq_ledger *ledger, unsigned index, unsigned slot) {
    struct gq_gpu *gpu = &ledger->gpu[index];
    for (;;) {
        uint64_t op = load(&gpu->op), charge = load(&gpu->charges[slot]);
        if (load(&gpu->op) != op || load(&gpu->charges[slot]) != charge) continue;
        uint64_t units = charge >> EPOCH_BITS;
        if (slot_of(op) == slot && epoch_of(op) != (charge & EPOCH_MASK))
            units += (uint64_t)delta_of(op);
        return units;
    }
}

/* Take back all that `slot` holds of a GPU, for as long as `owner` has it. */
static void take_back(struct gq_ledger *ledger, struct gq_gpu *gpu, unsigned slot, uint64_t owner) {
    for (;;) {
        uint64_t op = load(&gpu->op), used = load(&gpu->used);
        /* looked at after `op`: whoever had the slot next would have changed `op` */
        if (load(&ledger->owners[slot]) != owner) return;
        if (!close_step(gpu, used, &op)) continue;
        uint64_t charge = load(&gpu->charges[slot]);
        int64_t units = (int64_t)(charge >> EPOCH_BITS);
        if (units == 0) return;
        if (swap_both(gpu, used, op, used - (uint64_t)units,
                      make_op(slot, (charge & EPOCH_MASK) + 1, -units)))
            return;
    }
}

static void empty_slot(struct gq_ledger *ledger, unsigned slot, uint64_t owner) {
    for (unsigned index = 0; index < ledger->gpus; index++)
        take_back(ledger, &ledger->gpu[index], slot, owner);
}

/* ---- processes: pid (22 bits), start time in ticks (26), pid namespace (16) ---- */

#ifndef GQ_PROC /* a test builds it with one that is not there */
#define GQ_PROC "/proc"
#endif
#define START_MASK ((1ull << 26) - 1)

static int read_file(const char *path, char *buffer, int size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    int length = (int)read(file, buffer, (size_t)size - 1), why = errno;
    close(file);
    errno = why;
    if (length < 0) return -1;
    buffer[length] = 0;
    return length;
}

/* Start time, state and number of threads of a process, from /proc/PID/stat. 0 if there is none. */
static int read_stat(const char *path, uint64_t *start, char *state, uint64_t *threads) {
    char text[1024];
    errno = 0;
    int length = read_file(path, text, sizeof text);
    while (length > 0 && text[length] != ')') length--; /* the name may hold anything */
    if (length <= 0) return 0;
    const char *at = text + length + 2;
    *state = *at;
    for (int field = 3; *at && field < 22; at++) {
        if (*at != ' ') continue;
        uint64_t value = 0;
        for (const char *digit = at + 1; *digit >= '0' && *digit <= '9'; digit++)
            value = value * 10 + (uint64_t)(*digit - '0');
        field++;
        if (field == 20) *threads = value;
        if (field == 22) *start = value;
    }
    return 1;
}

static uint64_t name_space(void) {
    struct stat info;
    return stat(GQ_PROC "/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino & 0xffff : 0;
}

uint64_t gq_identity(void) {
    uint64_t start = 0, threads = 0;
    char state = 0;
    uint64_t pid = (uint64_t)getpid() << 42;
    /* without /proc it counts as of another namespace: nobody can judge it, and it can go on */
    if (!read_stat(GQ_PROC "/self/stat", &start, &state, &threads)) return pid;
    return pid | (start & START_MASK) << 16 | name_space();
}

/* Whether that process is surely gone. One of another pid namespace cannot be judged from here. */
static int is_dead(uint64_t owner) {
    if ((owner & 0xffff) != name_space()) return 0;
    char path[64] = GQ_PROC "/", digits[12];
    int at = (int)sizeof GQ_PROC, count = 0;
    for (uint64_t pid = owner >> 42; pid != 0; pid /= 10) digits[count++] = (char)('0' + pid % 10);
    while (count > 0) path[at++] = digits[--count];
    for (const char *rest = "/stat"; *rest; rest++) path[at++] = *rest;
    path[at] = 0;
    uint64_t start = 0, threads = 0;
    char state = 0;
    if (!read_stat(path, &start, &state, &threads)) {
        /* only what the system says is not there is gone: it may be out of file handles */
        int gone = errno == ENOENT || errno == ESRCH;
        return gone && access(GQ_PROC "/self/stat", R_OK) == 0;
    }
    if ((start & START_MASK) != (owner >> 16 & START_MASK)) return 1;
    /* a main thread that has ended before the others is a zombie of a living process */
    return (state == 'Z' || state == 'X') && threads <= 1;
}

void gq_ledger_sweep(struct gq_ledger *ledger) {
    for (unsigned slot = 0; slot < GQ_SLOTS; slot++) {
        uint64_t owner = load(&ledger->owners[slot]);
        if (owner == 0 || !is_dead(owner)) continue;
        empty_slot(ledger, slot, owner);
        swap(&ledger->owners[slot], owner, 0);
    }
}

int gq_slot_claim(struct gq_ledger *ledger, uint64_t identity) {
    /* the same process may have had one before it called exec, which gave its memory back */
    for (unsigned slot = 0; slot < GQ_SLOTS; slot++)
        if (load(&ledger->owners[slot]) == identity) {
            empty_slot(ledger, slot, identity);
            return (int)slot;
        }
    for (int swept = 0; swept < 2; swept++) {
        for (unsigned slot = 0; slot < GQ_SLOTS; slot++)
            if (load(&ledger->owners[slot]) == 0 && swap(&ledger->owners[slot], 0, identity))
                return (int)slot;
        gq_ledger_sweep(ledger);
    }
    return -1;
}

struct gq_ledger *gq_ledger_open(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    struct stat info;
    struct gq_ledger *ledger = NULL;
    if (fstat(file, &info) == 0 && info.st_size >= (off_t)sizeof *ledger) {
        ledger = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (ledger == MAP_FAILED) ledger = NULL;
    }
    close(file);
    if (ledger == NULL) return NULL;
    if (ledger->magic != GQ_MAGIC || ledger->version != GQ_VERSION || ledger->slots != GQ_SLOTS ||
        ledger->gpus > GQ_MAX_GPUS ||
        info.st_size < (off_t)(sizeof *ledger + ledger->gpus * sizeof ledger->gpu[0])) {
        munmap(ledger, (size_t)info.st_size);
        return NULL;
    }
    return ledger;
}
