/* A look-up in the loaded libraries' symbol tables.
 *
 * The real dlsym cannot be asked for itself: this library has taken its name. Its symbol version
 * differs between architectures and releases of glibc (in libdl before 2.34, in libc since), so
 * the tables are read here, in the order in which the libraries were loaded, as the dynamic linker
 * does. The format is that of the System V ABI; the GNU hash table is described in
 * https://flapenguin.me/elf-dt-gnu-hash.
 */
#define _GNU_SOURCE
#include "resolve.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct search {
    const char *name;
    void *found;
    int passed; /* this library itself */
};

struct tables {
    const ElfW(Sym) *symbols;
    const char *names;
    const uint32_t *gnu, *plain;
};

/* glibc has added the load address to these, other loaders have not. */
static const void *address(const struct dl_phdr_info *info, ElfW(Addr) value) {
    return (const void *)(value < info->dlpi_addr ? info->dlpi_addr + value : value);
}

static struct tables tables_of(const struct dl_phdr_info *info, const ElfW(Dyn) *entry) {
    struct tables found = {0};
    for (; entry->d_tag != DT_NULL; entry++) {
        const void *at = address(info, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB) found.symbols = at;
        if (entry->d_tag == DT_STRTAB) found.names = at;
        if (entry->d_tag == DT_GNU_HASH) found.gnu = at;
        if (entry->d_tag == DT_HASH) found.plain = at;
    }
    return found;
}

static const ElfW(Sym) *is_it(const struct tables *in, uint32_t index, const char *name) {
    const ElfW(Sym) *symbol = &in->symbols[index];
    int type = ELF64_ST_TYPE(symbol->st_info);
    int defined = symbol->st_shndx != SHN_UNDEF && type == STT_FUNC;
    return defined && strcmp(in->names + symbol->st_name, name) == 0 ? symbol : NULL;
}

static const ElfW(Sym) *by_gnu_hash(const struct tables *in, const char *name) {
    uint32_t hash = 5381;
    for (const char *at = name; *at; at++) hash = hash * 33 + (unsigned char)*at;
    uint32_t buckets = in->gnu[0], first = in->gnu[1], words = in->gnu[2];
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(in->gnu + 4) + words);
    const uint32_t *chain = bucket + buckets;
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    for (; index >= first && index != 0; index++) {
        uint32_t here = chain[index - first];
        const ElfW(Sym) *symbol = (here | 1) == (hash | 1) ? is_it(in, index, name) : NULL;
        if (symbol != NULL) return symbol;
        if (here & 1) break;
    }
    return NULL;
}

static const ElfW(Sym) *by_count(const struct tables *in, const char *name) {
    for (uint32_t index = 1; index < in->plain[1]; index++) {
        const ElfW(Sym) *symbol = is_it(in, index, name);
        if (symbol != NULL) return symbol;
    }
    return NULL;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    const ElfW(Dyn) *dynamic = NULL;
    int own = 0;
    (void)size;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[at];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)begin;
        if (part->p_type == PT_LOAD && (uintptr_t)visit - begin < part->p_memsz) own = 1;
    }
    if (own) search->passed = 1;
    if (own || !search->passed || dynamic == NULL) return 0;
    struct tables in = tables_of(info, dynamic);
    if (in.symbols == NULL || in.names == NULL) return 0;
    const ElfW(Sym) *symbol = in.gnu     ? by_gnu_hash(&in, search->name)
                              : in.plain ? by_count(&in, search->name)
                                         : NULL;
    if (symbol == NULL) return 0;
    search->found = (void *)(info->dlpi_addr + symbol->st_value);
    return 1;
}

void *gq_next_definition(const char *name) {
    struct search search = {.name = name};
    dl_iterate_phdr(visit, &search);
    return search.found;
}
