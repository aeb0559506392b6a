/* What NVML tells of a card's memory: the cap and what the job holds. Programs that size themselves
 * by it, or by nvidia-smi, would otherwise count on the whole card. */
#include "gq.h"
#include "resolve.h"

#include <string.h>

typedef struct {
    unsigned long long total, free, used;
} memory_v1;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

/* "GPU-" or "MIG-" and 32 hexadecimal digits between dashes. */
static int parse(const char *text, uint8_t uuid[16]) {
    int digits = 0;
    const char *at = strchr(text, '-');
    memset(uuid, 0, 16);
    for (; at != NULL && *at && digits < 32; at++) {
        int digit = *at >= '0' && *at <= '9'   ? *at - '0'
                    : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10
                    : *at >= 'A' && *at <= 'F' ? *at - 'A' + 10
                                               : -1;
        if (digit < 0) continue;
        uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | digit);
        digits++;
    }
    return digits == 32;
}

static int cap_of(void *device, uint64_t *room, uint64_t *limit) {
    char text[96] = "";
    uint8_t uuid[16];
    int (*get_uuid)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))gq_real_nvml(GQ_NVML_UUID);
    if (gq_open() == NULL || !get_uuid || get_uuid(device, text, sizeof text) || !parse(text, uuid))
        return 0;
    for (unsigned index = 0; index < gq_book()->gpus; index++)
        if (memcmp(gq_book()->gpu[index].uuid, uuid, 16) == 0) return gq_room((int)index, room, limit);
    return 0;
}

#define REPORT(memory)                                                     \
    do {                                                                   \
        uint64_t room, limit;                                              \
        if (cap_of(device, &room, &limit)) {                               \
            if (limit < (memory)->total) (memory)->total = limit;          \
            if (room < (memory)->free) (memory)->free = room;              \
            uint64_t used = (memory)->total - (memory)->free;              \
            (memory)->used = (memory)->free < (memory)->total ? used : 0;  \
        }                                                                  \
    } while (0)

GQ_EXPORT int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *memory) {
    int (*real)(void *, memory_v1 *) = (int (*)(void *, memory_v1 *))gq_real_nvml(GQ_NVML_MEMORY);
    int result = real ? real(device, memory) : 12; /* NVML_ERROR_LIBRARY_NOT_FOUND */
    if (result == 0) REPORT(memory);
    return result;
}

GQ_EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
    int (*real)(void *, memory_v2 *) = (int (*)(void *, memory_v2 *))gq_real_nvml(GQ_NVML_MEMORY_V2);
    int result = real ? real(device, memory) : 12;
    if (result == 0) {
        REPORT(memory);
        if (memory->reserved > memory->total - memory->free) memory->reserved = 0;
    }
    return result;
}
