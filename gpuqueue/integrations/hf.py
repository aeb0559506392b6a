"""Hugging Face's Trainer: ``Trainer(..., callbacks=[ResumeCallback()])``.

Asked to stop, Trainer saves a checkpoint after the step and ``train()`` returns early; its metrics
are noted with ``checkpoint.log``. ``last_checkpoint(args.output_dir)`` is where to go on.
"""

from __future__ import annotations

import os
import sys

from transformers import trainer_callback

from gpuqueue import checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ResumeCallback", "last_checkpoint", "leave_if_stopped"]

_Base: Any = trainer_callback.TrainerCallback


class ResumeCallback(_Base):  # type: ignore[misc]
    """Lets Trainer save and stop at the end of a step when the job is asked to.

    With several processes all of them stop at the same step.
    """

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Say that the job is resumable."""
        checkpoint.should_stop()

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Save and stop, if the job was asked to."""
        if checkpoint.should_stop(sync=True):
            control.should_save = True
            control.should_training_stop = True

    def on_log(
        self, _args: Any, state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Note the numbers that Trainer logs."""
        if state.is_world_process_zero:
            numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, (int, float))}
            checkpoint.log(state.global_step, **numbers)


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """What to give to ``trainer.train(resume_from_checkpoint=...)``: None on a fresh start."""
    found = checkpoint.latest_checkpoint(output_dir, "checkpoint-*", needs="trainer_state.json")
    return None if found is None else str(found)


def leave_if_stopped() -> None:
    """Exit with 0 if the job was asked to stop; call it after ``train()``, before evaluating."""
    if checkpoint.should_stop(sync=True):
        sys.exit(0)
