/* Processes and threads that race for the last room of a card, on the ledger alone or through the
 * whole library (with RACE_LIBRARY). Built with the sanitizers, too.
 *
 *   race last LEDGER ROUNDS PART    two processes, PART of 2 (0 or 1): in each round just one of them
 *                                   gets the last MiB. Prints how often this one did
 *   race churn LEDGER ROUNDS        four threads allocate and free at random. Prints what is left
 */
#define _GNU_SOURCE
#include "ledger.h"
#include "table.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB_UNITS (1u << (20 - GQ_UNIT_SHIFT))

static struct gq_ledger *ledger;
static struct gq_table table;
static int slot, rounds;

struct board {
    uint64_t arrived, wins[2], both, neither;
};

/* Both parts have come this far; they go on together. */
static void meet(struct board *board, uint64_t turn) {
    __atomic_fetch_add(&board->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&board->arrived, __ATOMIC_ACQUIRE) < turn * 2) sched_yield();
}

static int last(const char *path, int part) {
    char name[4096];
    snprintf(name, sizeof name, "%s.board", path);
    int file = open(name, O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, sizeof(struct board))) return 3;
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint64_t turn = 0;
    for (int round = 0; round < rounds; round++) {
        meet(board, ++turn);
        int won = gq_ledger_charge(ledger, 0, slot, MIB_UNITS);
        __atomic_store_n(&board->wins[part], won, __ATOMIC_RELEASE);
        meet(board, ++turn);
        int other = (int)__atomic_load_n(&board->wins[!part], __ATOMIC_ACQUIRE);
        if (part == 0) board->both += won && other, board->neither += !won && !other;
        if (ledger->gpu[0].used != (ledger->gpu[0].limit >> GQ_UNIT_SHIFT)) return 4;
        meet(board, ++turn);
        if (won) gq_ledger_adjust(ledger, 0, slot, -(int64_t)MIB_UNITS);
    }
    meet(board, ++turn);
    if (part == 0) printf("%lu %lu\n", board->both, board->neither);
    return 0;
}

static void *churn(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number * 7919 + 1;
    uint64_t mine[64] = {0};
    for (int round = 0; round < rounds; round++) {
        unsigned at = (unsigned)rand_r(&seed) % 64;
        struct gq_entry entry;
        if (mine[at]) {
            if (!gq_table_take(&table, gq_key(GQ_POINTER, mine[at]), &entry)) abort();
            gq_ledger_adjust(ledger, 0, slot, -gq_units_of(&entry));
            mine[at] = 0;
            continue;
        }
        uint32_t units = (unsigned)rand_r(&seed) % 4096 + 1;
        if (!gq_ledger_charge(ledger, 0, slot, units)) continue;
        mine[at] = ((uint64_t)(uintptr_t)number << 32 | (uint64_t)(round + 1)) << 9;
        if (!gq_table_put(&table, gq_make(GQ_POINTER, mine[at], units, 0, 0), &entry)) abort();
        if (round % 97 == 0) gq_ledger_sweep(ledger);
        if (gq_ledger_holds(ledger, 0, (unsigned)slot) > ledger->gpu[0].limit >> GQ_UNIT_SHIFT) abort();
    }
    for (int at = 0; at < 64; at++) {
        struct gq_entry entry;
        if (!mine[at]) continue;
        if (!gq_table_take(&table, gq_key(GQ_POINTER, mine[at]), &entry)) abort();
        gq_ledger_adjust(ledger, 0, slot, -gq_units_of(&entry));
    }
    return NULL;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    ledger = gq_ledger_open(words[2]);
    if (!ledger) return 2;
    rounds = atoi(words[3]);
    slot = gq_slot_claim(ledger, gq_identity());
    if (slot < 0) return 2;
    if (strcmp(words[1], "last") == 0) return last(words[2], atoi(words[4]));
    gq_ledger_sweep(ledger);
    pthread_t threads[4];
    for (uintptr_t at = 0; at < 4; at++) pthread_create(&threads[at], NULL, churn, (void *)(at + 1));
    for (int at = 0; at < 4; at++) pthread_join(threads[at], NULL);
    printf("%lu %lu\n", ledger->gpu[0].used, gq_ledger_holds(ledger, 0, (unsigned)slot));
    return 0;
}
