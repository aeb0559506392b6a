"""Lightning: ``Trainer(..., callbacks=[ResumeCallback()])``, from ``lightning``.

Asked to stop, it saves ``step=N.ckpt`` after the batch and ``fit()`` returns early; the metrics
that were logged are noted with ``checkpoint.log``. ``last_checkpoint()`` is where to go on.
"""

from __future__ import annotations

import os
import sys

from lightning.pytorch import callbacks

from gpuqueue import checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ResumeCallback", "last_checkpoint", "leave_if_stopped"]

_Base: Any = callbacks.Callback


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

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Note the metrics; save and stop, if the job was asked to."""
        if trainer.is_global_zero and trainer.global_step % trainer.log_every_n_steps == 0:
            numbers = {name: value.item() for name, value in trainer.callback_metrics.items()}
            checkpoint.log(trainer.global_step, **numbers)
        if checkpoint.should_stop(sync=True) and not trainer.should_stop:
            folder = self._folder if self._folder is not None else checkpoint.checkpoint_dir()
            trainer.save_checkpoint(os.path.join(folder, f"step={trainer.global_step}.ckpt"))
            trainer.should_stop = True


def last_checkpoint(folder: str | os.PathLike[str] | None = None) -> str | None:
    """What to give to ``trainer.fit(..., ckpt_path=...)``: None on a fresh start."""
    found = checkpoint.latest_checkpoint(folder, "*.ckpt")
    return None if found is None else str(found)


def leave_if_stopped() -> None:
    """Exit with 0 if the job was asked to stop; call it after ``fit()``, before testing."""
    if checkpoint.should_stop(sync=True):
        sys.exit(0)
