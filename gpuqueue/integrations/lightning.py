"""Lightning: ``Trainer(..., callbacks=[ResumeCallback()])``, from ``lightning``.

Asked to stop, it saves ``step=N.ckpt`` after the batch and ``fit()`` returns early; the metrics
that were logged are noted with ``checkpoint.log``. ``last_checkpoint()`` is where to go on.
Lightning itself keeps no random states, so that dropout would differ after a stop; every checkpoint
that is saved with this callback has them, for each process.
"""

from __future__ import annotations

import os
import sys

from lightning.pytorch import callbacks

from gpuqueue import checkpoint
from gpuqueue.integrations.torch import random_states, restore_random_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ResumeCallback", "last_checkpoint", "leave_if_stopped"]

_Base: Any = callbacks.Callback
_RANDOM = "gpuqueue_random_states"


class ResumeCallback(_Base):  # type: ignore[misc]
    """Lets Lightning save and stop after a batch when the job is asked to.

    Parameters
    ----------
    folder
        Where checkpoints go; ``checkpoint_dir()`` if it is not given. It must be the same for all
        processes of a distributed training, which all stop at the same batch.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = folder
        self._random: Any = None

    def on_save_checkpoint(self, _trainer: Any, _module: Any, saved: dict[str, Any]) -> None:
        """Add the random states; Lightning calls this in every process."""
        saved[_RANDOM] = _of_all(random_states())

    def on_load_checkpoint(self, trainer: Any, _module: Any, saved: dict[str, Any]) -> None:
        """Put them back before the loader begins an epoch, whose order may be drawn from them."""
        states = saved.get(_RANDOM, [])
        if len(states) == trainer.world_size:
            self._random = states[trainer.global_rank]
            restore_random_states(self._random)

    def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, index: int) -> None:
        """Put them back for an epoch that goes on, once its loader has drawn what it draws."""
        if self._random is not None and index:
            restore_random_states(self._random)
        self._random = None

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Note the metrics; save and stop, if the job was asked to."""
        if trainer.is_global_zero and trainer.global_step % trainer.log_every_n_steps == 0:
            numbers = {name: value.item() for name, value in trainer.callback_metrics.items()}
            checkpoint.log(trainer.global_step, **numbers)
        if checkpoint.should_stop(sync=True) and not trainer.should_stop:
            folder = self._folder if self._folder is not None else checkpoint.checkpoint_dir()
            trainer.save_checkpoint(os.path.join(folder, f"step={trainer.global_step}.ckpt"))
            trainer.should_stop = True


def _of_all(mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What every process of a distributed training has, by rank."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return [mine]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def last_checkpoint(folder: str | os.PathLike[str] | None = None) -> str | None:
    """What to give to ``trainer.fit(..., ckpt_path=...)``: None on a fresh start."""
    found = checkpoint.latest_checkpoint(folder, "*.ckpt")
    return None if found is None else str(found)


def leave_if_stopped() -> None:
    """Exit with 0 if the job was asked to stop; call it after ``fit()``, before testing."""
    if checkpoint.should_stop(sync=True):
        sys.exit(0)
