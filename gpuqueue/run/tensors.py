"""How torch's tensors are pickled: as views of the memory that they share, with their gradients."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from gpuqueue.run.making import DEVICE, fill_tensor, make_storage, make_tensor

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
        self._devices: dict[int, str] = {}
        """Where the memory of tensors belongs, by the id of their storage."""

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

    def storage(self, torch: Any, value: Any) -> Any:
        """How the memory of tensors is made again."""
        device = self._devices.get(id(value), str(value.device))
        if not value.nbytes():
            return make_storage, (b"", device)
        here = torch.empty(0, dtype=torch.uint8, device=value.device)
        data = here.set_(value, 0, (value.nbytes(),), (1,)).cpu()
        return make_storage, (pickle.PickleBuffer(data.numpy()), device)
