"""How torch's tensors are pickled: as views of the memory that they share, with their gradients."""

from __future__ import annotations

import bisect
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from gpuqueue.run.arrays import is_over_tensor
from gpuqueue.run.making import DEVICE, fill_tensor, make_storage, make_storage_over, make_tensor

__all__ = ["Tensors"]


class Tensors:
    """The tensors of one pickle.

    Parameters
    ----------
    worth
        Whether a tensor of some bytes is to take along all of the memory behind it, of so many.
    """

    def __init__(self, worth: Callable[[Any, int, int], bool]) -> None:
        self._worth = worth
        self._kept: list[Any] = []
        self._arrays: Callable[[], Iterable[Any]] = tuple
        self._begins: list[int] | None = None
        """Where the memory of each of the arrays begins, in order; None until that is asked."""
        self._by_begin: dict[int, Any] = {}
        self._devices: dict[int, str] = {}
        """Where the memory of tensors belongs, by the id of their storage."""

    def beside(self, arrays: Callable[[], Iterable[Any]]) -> None:
        """Say which arrays are sent beside the tensors, or are there already."""
        self._arrays, self._begins = arrays, None

    def tensor(self, torch: Any, value: Any) -> Any:
        """How a tensor is made again; None for torch's own way."""
        device = str(value.device)
        if (
            value.layout is not torch.strided
            or value.is_quantized
            or value.is_nested
            or value.is_conj()
            or value.is_neg()
            or value.device.type not in ("cpu", "cuda")
            or torch._C._functorch.is_functorch_wrapped_tensor(value)  # noqa: SLF001
        ):
            return None
        graph = ""
        if not value.is_leaf:
            graph = type(value.grad_fn).__name__
        plain = value.detach()
        storage = plain.untyped_storage()
        size = plain.numel() * plain.element_size()
        if not self._worth(storage, size, storage.nbytes()):
            plain = plain.clone()
            storage = plain.untyped_storage()
        self._kept.append(storage)  # an id must not be given to another one
        extras = {k: v for k, v in vars(value).items() if k != DEVICE}
        device = self._devices.setdefault(id(storage), getattr(value, DEVICE, device))
        args = (
            type(value), storage, value.dtype, plain.storage_offset(), tuple(plain.shape),
            plain.stride(), value.requires_grad, device, graph,
        )  # fmt: skip
        if not value.requires_grad and not extras:
            return make_tensor, args
        state: dict[str, Any] = {"vars": extras}
        if value.is_leaf:
            state["grad"] = value.grad
        return make_tensor, args, state, None, None, fill_tensor

    def _array_behind(self, storage: Any) -> Any:
        """The array whose memory tensors use, as those of ``torch.from_numpy``; None if none is."""
        if self._begins is None:
            self._by_begin = {one.__array_interface__["data"][0]: one for one in self._arrays()}
            self._begins = sorted(self._by_begin)
        first, last = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        at = bisect.bisect_right(self._begins, first) - 1
        if at < 0:
            return None
        array = self._by_begin[self._begins[at]]
        if last > self._begins[at] + array.nbytes or not array.flags.writeable:
            return None
        return None if is_over_tensor(array) else array  # that one is made of the tensor

    def storage(self, torch: Any, value: Any) -> Any:
        """How the memory of tensors is made again."""
        device = self._devices.get(id(value), str(value.device))
        if not value.nbytes():
            return make_storage, (b"", device)
        if value.device.type == "cpu" and (array := self._array_behind(value)) is not None:
            offset = value.data_ptr() - array.__array_interface__["data"][0]
            return make_storage_over, (array, offset, value.nbytes())
        here = torch.empty(0, dtype=torch.uint8, device=value.device)
        data = here.set_(value, 0, (value.nbytes(),), (1,)).cpu()
        return make_storage, (pickle.PickleBuffer(data.numpy()), device)
