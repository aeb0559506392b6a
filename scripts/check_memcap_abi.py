"""Compare the memory cap's picture of CUDA's driver interface with a real ``cuda.h``.

    python scripts/check_memcap_abi.py INCLUDE_DIR

Compiles assertions about sizes, offsets and numbers, and about the arguments of each function that
is replaced; then lists the functions of that header which sound as if they took or gave device
memory and are not replaced, with the reason where one is known. Needs a C compiler and no GPU. The
header comes with the CUDA toolkit, or with ``pip download nvidia-cuda-runtime``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "gpuqueue/share/memcap/src"

NOT_COUNTED = {
    r"^cuMem(Alloc|Free|Host)\w*Host|^cuMemHost": "host memory",
    r"Ipc(Open|Close|Get)|ImportPointer|ImportFromShareable|ExternalMemory|ExternalSem": (
        "paid for by who exported it"
    ),
    r"^cuMem(Address|Export|GetA|SetA|GetHandle)|MemoryRequirements|LogsDump|cuDevice\w*MemPool": (
        "takes no memory"
    ),
    r"^cuMemPool(Export|Get|Set)|cuMem[GS]et\w*Pool|Granularity": ("takes no memory"),
    r"^cuGraph\w*Mem(Alloc|Free)Node|^cuGraphAdd|^cuGraphExecMem": "nodes, charged at the launch",
    r"^cuMem(cpy|set|Advise|Prefetch|Range|Discard)|PrefetchBatch|cuMemBatch": "moves, not takes",
    r"^cuMulticast|cuMemMapArrayAsync": "binds memory of cuMemCreate",
}

ASSERTIONS = r"""
#include <cuda.h>
#include <stddef.h>
#define CUresult own_CUresult
#define CUdevice own_CUdevice
#define CUdeviceptr own_CUdeviceptr
#define CUcontext own_CUcontext
#define CUstream own_CUstream
#define CUevent own_CUevent
#define CUarray own_CUarray
#define CUDA_SUCCESS OWN_SUCCESS
#define CUDA_ERROR_OUT_OF_MEMORY OWN_OUT_OF_MEMORY
#define CUDA_ERROR_NOT_INITIALIZED OWN_NOT_INITIALIZED
#define CUgraph own_CUgraph
#include "cuda_abi.h"
#undef CUresult
#undef CUDA_SUCCESS
#undef CUDA_ERROR_OUT_OF_MEMORY
#undef CUDA_ERROR_NOT_INITIALIZED
#define SAME(a, b) _Static_assert((long)(a) == (long)(b), #a " is not " #b)
#define FIELD(own, field, real, its) SAME(offsetof(own, field), offsetof(real, its))
SAME(sizeof(CUlocation), sizeof(CUmemLocation));
FIELD(CUlocation, id, CUmemLocation, id);
FIELD(CUalloc_head, location, CUmemAllocationProp, location);
FIELD(CUalloc_head, location, CUmemPoolProps, location);
SAME(sizeof(CUalloc_node), sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));
FIELD(CUalloc_node, bytes, CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
FIELD(CUalloc_node, pointer, CUDA_MEM_ALLOC_NODE_PARAMS, dptr);
SAME(sizeof(CUarray_descriptor), sizeof(CUDA_ARRAY_DESCRIPTOR));
FIELD(CUarray_descriptor, format, CUDA_ARRAY_DESCRIPTOR, Format);
FIELD(CUarray_descriptor, channels, CUDA_ARRAY_DESCRIPTOR, NumChannels);
SAME(sizeof(CUarray3d_descriptor), sizeof(CUDA_ARRAY3D_DESCRIPTOR));
FIELD(CUarray3d_descriptor, format, CUDA_ARRAY3D_DESCRIPTOR, Format);
FIELD(CUarray3d_descriptor, flags, CUDA_ARRAY3D_DESCRIPTOR, Flags);
SAME(sizeof(CUarray_needs), sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS));
SAME(OWN_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(OWN_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(POOL_RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME(POOL_USED, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
SAME(GRAPH_RESERVED, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
SAME(NODE_GRAPH, CU_GRAPH_NODE_TYPE_GRAPH);
SAME(NODE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
SAME(ARRAY_SPARSE, CUDA_ARRAY3D_SPARSE);
SAME(ARRAY_DEFERRED, CUDA_ARRAY3D_DEFERRED_MAPPING);
SAME(sizeof(CUmemGenericAllocationHandle), sizeof(CUhandle));
"""


def arguments(text: str, name: str) -> int | None:
    """How many arguments a function has in some C text; None where it is not there."""
    found = re.search(
        rf"^[A-Z_ ]*CUresult (?:CUDAAPI )?{name}\(([^)]*)\)\s*[;{{]", text, re.MULTILINE
    )
    if found is None:
        return None
    inside = found[1].strip()
    return 0 if inside in ("", "void") else inside.count(",") + 1


def main() -> int:
    """Check one header."""
    include = Path(sys.argv[1])
    header = (include / "cuda.h").read_text(encoding="utf-8", errors="replace")
    version = re.search(r"#define CUDA_VERSION (\d+)", header)
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write(ASSERTIONS)
        file.flush()
        words = ["cc", "-fsyntax-only", f"-I{include}", f"-I{SOURCES}", file.name]
        if subprocess.run(words, check=False).returncode:
            return 1
    own = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.c"))
    hooks = re.findall(r"X\((cu\w+), (cu\w+), \d+, \d\)", (SOURCES / "gq.h").read_text())
    renamed = dict(re.findall(r"#define\s+(cu\w+)\s+(?:__CUDA_API_PT[DS]Z?\()?(cu\w+)", header))
    wrong = 0
    for _, name in hooks:
        plain = name.removesuffix("_ptsz")
        if plain in renamed and plain not in renamed.values() and renamed[plain] != plain:
            continue  # an older form, which the header no longer declares
        asked = next((short for short, long in renamed.items() if long == plain), plain)
        theirs = arguments(header, plain) or arguments(header, asked)
        if theirs is not None and theirs != arguments(own, name):
            print(f"{name}: {arguments(own, name)} arguments here, {theirs} there")
            wrong += 1
    covered = {word for pair in hooks for word in pair}
    print(f"CUDA {version[1] if version else '?'}: {len(hooks)} replaced, {wrong} wrong")
    declared = set(re.findall(r"^CUresult CUDAAPI (cu\w+)\(", header, re.MULTILINE))
    for name in sorted(declared - covered):
        if re.search(r"Mem(Alloc|Create|Pool|Import|Map|Free|Release|ory)|ArrayCreate", name):
            why = next((why for what, why in NOT_COUNTED.items() if re.search(what, name)), "???")
            print(f"  not replaced: {name}: {why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
