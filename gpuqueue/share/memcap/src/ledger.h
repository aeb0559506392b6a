/* The ledger: one small file per job, mapped by all of its processes, that says how much device
 * memory each of them holds on each GPU and how much they may hold together.
 *
 * Nothing in it is a lock. A process may be stopped or killed between any two instructions and
 * nobody waits for it; what it held is known to the byte and can be taken back.
 */
#ifndef GQ_LEDGER_H
#define GQ_LEDGER_H

#include <stdint.h>

#define GQ_MAGIC 0x5041434d454d5147ull /* "GQMEMCAP" in the file, little-endian */
#define GQ_VERSION 1u
#define GQ_SLOTS 1024u     /* processes of one job that hold device memory at one time */
#define GQ_UNIT_SHIFT 9    /* memory is counted in units of 512 bytes */
#define GQ_MAX_GPUS 64u
#define GQ_NO_UNITS 0x7fffffffu /* more than can be counted: 1 TiB */

struct gq_gpu {
    uint8_t uuid[16];
    uint64_t limit; /* bytes; all ones: counted and not capped. Only the owner of the file writes it */
    uint8_t pad1[40];
    /* `used` and `op` change together, by one 16-byte compare-and-swap; see ledger.c */
    uint64_t used __attribute__((aligned(64))); /* units, all processes */
    uint64_t op;
    uint8_t pad2[48];
    uint64_t peak;         /* units, the most that `used` has been */
    uint64_t refusals;     /* how often an allocation was refused */
    uint64_t last_refused; /* units of the last one */
    uint8_t pad3[40];
    uint64_t charges[GQ_SLOTS]; /* of each process: units << 21 | number of its last settled epoch */
};

struct gq_ledger {
    uint64_t magic;
    uint32_t version;
    uint32_t gpus;
    uint32_t slots;
    uint8_t pad[44];
    uint64_t owners[GQ_SLOTS]; /* who has the slot; 0: nobody. See gq_identity */
    struct gq_gpu gpu[];
};

_Static_assert(sizeof(struct gq_gpu) == 192 + 8 * GQ_SLOTS, "the layout is a file format");
_Static_assert(sizeof(struct gq_ledger) == 64 + 8 * GQ_SLOTS, "the layout is a file format");

/* Map the file at `path`; NULL where it is not a ledger of this version. */
struct gq_ledger *gq_ledger_open(const char *path);

/* Identity of this process in `owners`; never 0. */
uint64_t gq_identity(void);

/* Take a slot for `identity`, with nothing charged to it; -1 where all belong to the living. */
int gq_slot_claim(struct gq_ledger *ledger, uint64_t identity);

/* Add `units` to what `slot` holds of GPU `index`. Returns 0, and changes nothing, where the job
 * would then hold more than its limit. */
int gq_ledger_charge(struct gq_ledger *ledger, unsigned index, unsigned slot, uint32_t units);

/* Add or take back without asking: for what the driver has done already. */
void gq_ledger_adjust(struct gq_ledger *ledger, unsigned index, unsigned slot, int64_t units);

/* Take back what dead processes held. */
void gq_ledger_sweep(struct gq_ledger *ledger);

/* Note a refusal, for whoever reads the ledger. */
void gq_ledger_refused(struct gq_ledger *ledger, unsigned index, uint64_t units);

/* Units that slot holds of GPU index (for tests; the readers of the file have their own). */
uint64_t gq_ledger_holds(struct gq_ledger *ledger, unsigned index, unsigned slot);

#endif
