/* A client of the tests' MPS daemon (fake_mps_control.py), part of the driver without a GPU. As with
 * the real one, a pipe directory without a daemon means that nothing is held, in silence.
 *
 *   FAKE_MPS_LIES       MPS has the process, and it has all multiprocessors all the same
 *   FAKE_MPS_NO_LIMIT   CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is ignored
 */
#include <sys/socket.h>
#include <sys/un.h>

#define MULTIPROCESSORS 132

static int mps_percent = 100;
static uint64_t mps_limit, mps_used;

static void mps_begin(void) {
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (!pipe || snprintf(name.sun_path, sizeof name.sun_path, "%s/control", pipe) >= (int)sizeof name.sun_path)
        return;
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); /* open until the process ends */
    if (server < 0) return;
    char text[64];
    int length = snprintf(text, sizeof text, "client %d\n", getpid());
    if (connect(server, (struct sockaddr *)&name, sizeof name) || write(server, text, length) != length ||
        (length = read(server, text, sizeof text - 1)) <= 0) {
        close(server);
        return;
    }
    text[length] = 0;
    const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    mps_percent = atoi(text);
    if (own && atoi(own) < mps_percent) mps_percent = atoi(own);
    if (getenv("FAKE_MPS_LIES")) mps_percent = 100;
    if (limit && !strncmp(limit, "0=", 2) && !getenv("FAKE_MPS_NO_LIMIT")) mps_limit = strtoull(limit + 2, NULL, 10) << 20;
}

/* Whether a process may have so many bytes more; they are its own from then on. */
static int mps_takes(uint64_t bytes) {
    uint64_t now = __atomic_add_fetch(&mps_used, bytes, __ATOMIC_SEQ_CST);
    if (!mps_limit || now <= mps_limit) return 1;
    __atomic_sub_fetch(&mps_used, bytes, __ATOMIC_SEQ_CST);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    if (attribute != 16) return 1;
    *value = MULTIPROCESSORS * mps_percent / 100;
    return 0;
}
