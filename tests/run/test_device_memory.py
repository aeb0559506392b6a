"""What a job can tell of its device memory, and how it is known that it ran out."""

import sys
from types import SimpleNamespace

import pytest

from gpuqueue.run.devicememory import (
    is_out_of_memory,
    log_tells_out_of_memory,
    peak_of_torch,
    tells_out_of_memory,
)

# as the libraries write it: PyTorch 2.x, CuPy 13, JAX 0.4, TensorFlow 2, Numba 0.59
TOLD = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 7.79 GiB",
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB",
    "RuntimeError: CUDA error: out of memory",
    "torch.AcceleratorError: CUDA error: out of memory",
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated",
    "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to",
    "ResourceExhaustedError: {{function_node}} OOM when allocating tensor with shape[8,8] and type",
    "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in "
    "CUDA_ERROR_OUT_OF_MEMORY",
]
NOT_TOLD = [
    "MemoryError",
    "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB",
    "OSError: [Errno 12] Cannot allocate memory",
    "RuntimeError: CUDA error: device-side assert triggered",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
    "slurmstepd: error: Detected 1 oom-kill event(s)",
    "we are out of memory of what happened",
]


@pytest.mark.parametrize("text", TOLD)
def test_the_words_of_libraries_are_known(text):
    assert tells_out_of_memory(f"epoch 1\n{text}")


@pytest.mark.parametrize("text", NOT_TOLD)
def test_other_words_are_not_taken_for_them(text):
    assert not tells_out_of_memory(text)


def test_only_the_end_of_a_log_counts(tmp_path):
    log = tmp_path / "log"
    log.write_text(TOLD[0] + "\n" + "a line\n" * 20)
    assert log_tells_out_of_memory(str(log))
    # it was caught, and the job went on
    log.write_text(TOLD[0] + "\n" + "a line\n" * 200)
    assert not log_tells_out_of_memory(str(log))
    log.write_bytes(b"\xff" * 200_000 + b"\n" + TOLD[0].encode())
    assert log_tells_out_of_memory(str(log))
    log.write_bytes(b"")
    assert not log_tells_out_of_memory(str(log))
    assert not log_tells_out_of_memory(str(tmp_path / "none"))


def test_an_exception_counts_with_what_it_was_raised_from():
    torch = pytest.importorskip("torch")
    assert is_out_of_memory(torch.OutOfMemoryError("no more"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    later = ValueError("step 3")
    later.__cause__ = torch.OutOfMemoryError("no more")
    assert is_out_of_memory(later)
    # it was being handled, and what went wrong is another thing
    other = KeyError("in the handler")
    other.__context__ = torch.OutOfMemoryError("no more")
    assert not is_out_of_memory(other)
    assert not is_out_of_memory(MemoryError())
    assert not is_out_of_memory(None)

    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    assert not is_out_of_memory(Odd())


def test_pytorch_tells_its_peak_only_where_it_has_used_a_gpu(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert peak_of_torch() is None
    cuda = SimpleNamespace(
        is_initialized=lambda: False,
        device_count=lambda: 3,
        max_memory_reserved=lambda number: [5, 9, 7][number],
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert peak_of_torch() is None
    cuda.is_initialized = lambda: True
    assert peak_of_torch() == 9
    cuda.device_count = lambda: 0
    assert peak_of_torch() is None
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert peak_of_torch() is None
