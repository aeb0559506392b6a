"""Train on the handwritten digits, ready to make room at any step and to go on later.

Run it (``python train_resumable.py``), or queue it. Asked to stop, it saves all it has to remember
and exits; started again, it ends with the same weights, bit by bit, as if nothing had happened.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

from gpuqueue import checkpoint

BATCH = 64


def batch_of(step: int, size: int) -> torch.Tensor:
    """The examples of a step, drawn by its epoch's number: the same after a stop."""
    epoch, index = divmod(step, size // BATCH)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    return order[index * BATCH : (index + 1) * BATCH]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on the digits, resumably.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-time", type=float, default=0, help="seconds to wait in each step")
    parser.add_argument("--out", default="digits.pt", help="where the trained weights go")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    parts = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3)}
    parts["scheduler"] = torch.optim.lr_scheduler.StepLR(parts["optimizer"], 100, gamma=0.5)

    folder = checkpoint.checkpoint_dir()
    step = 0
    if last := checkpoint.latest_checkpoint(folder):
        step = checkpoint.load_state(last, **parts)["step"]
        print(f"going on after step {step}")
    pace = checkpoint.every(mtbf=3 * 3600)
    while step < options.steps:
        rows = batch_of(step, len(x))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        parts["optimizer"].zero_grad()
        loss.backward()
        parts["optimizer"].step()
        parts["scheduler"].step()
        time.sleep(options.step_time)  # as if the model were larger
        step += 1
        checkpoint.log(step, loss=loss.item())

        stopping = checkpoint.should_stop()
        if stopping or pace.due():
            with pace.saving():
                checkpoint.save_state(folder / f"step{step}.pt", step=step, **parts)
            checkpoint.keep(folder)
        if stopping:
            print(f"making room after step {step}")
            sys.exit(0)

    with checkpoint.atomic_path(options.out) as path:
        torch.save(model.state_dict(), path)
    print(f"loss {loss.item():.4f} after step {step}" if options.steps else "nothing to do")


if __name__ == "__main__":
    main()
