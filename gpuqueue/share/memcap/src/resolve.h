/* Finding functions, and being found instead of them. */
#ifndef GQ_RESOLVE_H
#define GQ_RESOLVE_H

enum { GQ_NVML_MEMORY, GQ_NVML_MEMORY_V2, GQ_NVML_UUID, GQ_NVML_COUNT };

/* Functions of NVML, NULL where they are not there. */
void *gq_real_nvml(int function);

/* elf.c: the definition of `name` that comes after this library's among the loaded ones. */
void *gq_next_definition(const char *name);

#endif
