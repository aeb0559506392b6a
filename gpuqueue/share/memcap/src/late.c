/* A process that was started without a share gets one as CUDA begins in it.
 *
 * GPUQUEUE_LATE has the time limit in seconds and the name of an abstract socket: "15:gpuqueue-...".
 * Whoever started the notebook's kernel listens there. The answer is the environment that a process
 * of the job starts with, which the driver reads in cuInit and this library at its first charge.
 * Who answers is another process, so no lock of this one's interpreter is in the way.
 *
 *   answer   "1", then NAME=VALUE or NAME (to be removed), each with a zero byte; a zero byte more
 *            "0" and a sentence, which is for others: nothing is printed here
 */
#define _GNU_SOURCE
#include "gq.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LATE "GPUQUEUE_LATE"
#define LONGEST 60 /* seconds */

static int32_t asking; /* the process whose thread asks: a forked child does not wait for it */
static char answer[256 << 10];

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static const char *door(void) {
    const char *text = getenv(LATE);
    return text != NULL && *text != 0 ? text : NULL;
}

int gq_is_late(void) { return door() != NULL; }

static int connected(const char *name) {
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length == 0 || length >= sizeof there.sun_path) return -1;
    memcpy(there.sun_path + 1, name, length);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t peer_size = sizeof peer;
    /* when whoever listened has gone, anybody may take the name */
    if (file >= 0 && (connect(file, (struct sockaddr *)&there, size) != 0 ||
                      getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0 ||
                      peer.uid != geteuid())) {
        close(file);
        return -1;
    }
    return file;
}

/* Length of the whole answer; -1: none within the time. */
static ssize_t heard(int file, int64_t deadline) {
    size_t length = 0;
    while (length < sizeof answer) {
        int64_t left = deadline - now_ms();
        struct pollfd wait = {.fd = file, .events = POLLIN};
        int ready = left > 0 ? poll(&wait, 1, (int)left) : 0;
        if (ready == 0) return -1;
        ssize_t got = ready < 0 ? -1 : recv(file, answer + length, sizeof answer - length, MSG_DONTWAIT);
        if (got == 0) return (ssize_t)length;
        if (got > 0) length += (size_t)got;
        if (got < 0 && errno != EINTR && errno != EAGAIN) return -1;
    }
    return -1;
}

/* Take on what was answered; 0 where it is a refusal, or was cut short. */
static int take_on(size_t length) {
    if (length < 3 || answer[0] != '1' || answer[length - 1] != 0 || answer[length - 2] != 0) return 0;
    for (char *entry = answer + 1; *entry != 0;) {
        char *next = entry + strlen(entry) + 1, *value = strchr(entry, '=');
        if (value != NULL) *value = 0;
        if (value != NULL ? setenv(entry, value + 1, 1) : unsetenv(entry)) return 0;
        entry = next;
    }
    return 1;
}

static int ask(const char *name, int64_t deadline) {
    int file = connected(name);
    if (file < 0) return 0;
    ssize_t length = send(file, "cuda\n", 5, MSG_NOSIGNAL) == 5 ? heard(file, deadline) : -1;
    close(file);
    return length > 0 && take_on((size_t)length);
}

/* The name in a door, and in how many milliseconds it is to have answered; NULL: it is none. */
static const char *name_in(const char *text, int64_t *patience) {
    char *name;
    long seconds = strtol(text, &name, 10);
    *patience = 1000 * (int64_t)(seconds < 0 || seconds > LONGEST ? LONGEST : seconds);
    return *name == ':' ? name + 1 : NULL;
}

/* Whether CUDA may begin. Nothing is remembered: once the answer was taken on, there is no door. */
static int admitted(void) {
    const char *text = door();
    if (text == NULL) return 1;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL && (*visible == 0 || *visible == '-')) return 1; /* it is to see no GPU */
    int32_t me = (int32_t)getpid();
    int64_t patience, deadline;
    name_in(text, &patience);
    deadline = now_ms() + patience; /* for all threads that came at the same moment */
    for (;;) {
        int32_t who = 0;
        if (__atomic_compare_exchange_n(&asking, &who, me, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) break;
        if (who != me && __atomic_compare_exchange_n(&asking, &who, me, 0, __ATOMIC_ACQ_REL,
                                                     __ATOMIC_ACQUIRE))
            break;
        struct timespec moment = {.tv_nsec = 1000000};
        nanosleep(&moment, NULL);
        if (now_ms() > deadline) return 0;
    }
    int may = 1;
    text = door();
    if (text != NULL) { /* else another thread was first */
        const char *name = name_in(text, &patience);
        may = name != NULL && ask(name, deadline);
    }
    __atomic_store_n(&asking, 0, __ATOMIC_RELEASE);
    return may;
}

GQ_EXPORT CUresult cuInit(unsigned flags) {
    if (gq_real(GQ_cuInit_cuInit_at) != NULL && !admitted()) return CUDA_ERROR_NO_DEVICE;
    return GQ_CALL(GQ_cuInit_cuInit_at, (unsigned), flags);
}
