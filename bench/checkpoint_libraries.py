"""Resume with the real Trainer and the real Lightning: JSON, by library, as the last line.

    pip install transformers accelerate lightning
    python bench/checkpoint_libraries.py

Each trains a small model for 30 steps without a stop, and again, asked to stop in step 13 and then
started anew. ``same`` says whether the weights are equal, bit by bit. Lightning's data comes from a
loader that keeps its place; with one that does not, it starts the epoch's data again and says so.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuqueue import checkpoint
from gpuqueue.run.files import ask_to_stop, has_heard

STEPS, ASKED_IN, BATCH = 30, 13, 8
ROWS = torch.rand(64, 8, generator=torch.Generator().manual_seed(0))


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """What the models learn: to add up."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": ROWS[index], "labels": ROWS[index].sum()}


class Model(nn.Module):
    """With dropout, so that the random states count."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x).squeeze(-1) - labels).square().mean()}


class Loader:
    """Batches in order, from where it was."""

    place = 0

    def __len__(self) -> int:
        return len(ROWS) // BATCH

    def __iter__(self) -> Any:
        start, self.place = self.place, 0
        for index in range(start, len(self)):
            self.place = (index + 1) % len(self)
            yield ROWS[index * BATCH :][:BATCH]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def ask() -> None:
    ask_to_stop(os.environ["GPUQUEUE_ATTEMPT_DIR"])


def with_trainer(*, asked: bool) -> tuple[int, nn.Module]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from gpuqueue.integrations.hf import ResumeCallback, last_checkpoint

    class Ask(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_step_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            if asked and state.global_step == ASKED_IN - 1:
                ask()

    torch.manual_seed(0)
    model = Model()
    arguments = TrainingArguments(
        str(checkpoint.checkpoint_dir()), max_steps=STEPS, per_device_train_batch_size=BATCH,
        save_steps=10, logging_steps=5, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[ResumeCallback(), Ask()])
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))
    return trainer.state.global_step, model


def with_lightning(*, asked: bool) -> tuple[int, nn.Module]:
    import lightning

    from gpuqueue.integrations.lightning import ResumeCallback, last_checkpoint

    class Module(lightning.LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            loss = (self.model(batch).squeeze(-1) - batch.sum(1)).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    class Ask(lightning.Callback):  # type: ignore[misc,unused-ignore]
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if asked and trainer.global_step == ASKED_IN - 1:
                ask()

    torch.manual_seed(0)
    module = Module()
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=5,
        callbacks=[ResumeCallback(), Ask()],
    )  # fmt: skip
    trainer.fit(module, Loader(), ckpt_path=last_checkpoint())
    return trainer.global_step, module


def compare(train: Any, root: Path) -> dict[str, Any]:
    ends = []
    for job, attempt, asked in (("whole", 1, False), ("job", 1, True), ("job", 2, False)):
        folder = root / job / str(attempt)
        folder.mkdir(parents=True)
        os.environ["GPUQUEUE_ATTEMPT_DIR"] = str(folder)
        vars(checkpoint)["_state"] = vars(checkpoint)["_State"]()  # as in a new process
        steps, model = train(asked=asked)
        assert has_heard(folder) is asked
        ends.append((steps, list(model.parameters())))
    whole, stopped, resumed = ends
    same = all(torch.equal(*pair) for pair in zip(whole[1], resumed[1], strict=True))
    return {"steps": whole[0], "stopped_at": stopped[0], "ended_at": resumed[0], "same": same}


def main() -> None:
    """Run what is installed, and print the JSON line."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, train in (("transformers", with_trainer), ("lightning", with_lightning)):
        try:
            which = version(name)
        except PackageNotFoundError:
            found[name] = None
            continue
        with tempfile.TemporaryDirectory() as root:
            found[name] = {"version": which, **compare(train, Path(root))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
