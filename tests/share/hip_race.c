/* Linked to HIP, as most programs are: in each of so many rounds two processes (PART 0 and 1) want
 * the last room, and just one of them gets it.    hip_race BOARD ROUNDS PART BYTES
 */
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int hipMalloc(void **made, size_t bytes);
int hipFree(void *what);

struct board {
    uint64_t arrived, wins[2];
};

static void meet(struct board *board, uint64_t turn) {
    __atomic_fetch_add(&board->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&board->arrived, __ATOMIC_ACQUIRE) < turn * 2) sched_yield();
}

int main(int count, char **words) {
    if (count != 5) return 2;
    int file = open(words[1], O_RDWR | O_CREAT, 0600), rounds = atoi(words[2]), part = atoi(words[3]);
    size_t bytes = strtoul(words[4], NULL, 10);
    if (ftruncate(file, sizeof(struct board))) return 3;
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint64_t turn = 0, both = 0, neither = 0, mine = 0;
    for (int round = 0; round < rounds; round++) {
        void *made = NULL;
        meet(board, ++turn);
        int result = hipMalloc(&made, bytes);
        if (result != 0 && result != 2) return 4;
        __atomic_store_n(&board->wins[part], result == 0, __ATOMIC_RELEASE);
        meet(board, ++turn);
        int other = (int)__atomic_load_n(&board->wins[!part], __ATOMIC_ACQUIRE);
        both += result == 0 && other, neither += result != 0 && !other, mine += result == 0;
        meet(board, ++turn);
        if (result == 0 && hipFree(made)) return 5;
    }
    printf("%lu %lu %lu\n", both, neither, mine);
    return 0;
}
