"""Train a small network on scikit-learn's handwritten digits: a script as people have them.

It knows nothing of gpuqueue. Run it yourself (``python train_digits.py --lr 0.1``) or queue it.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on the digits.")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)  # a network this small is fastest on one core
    torch.manual_seed(0)

    digits = load_digits()
    parts = train_test_split(digits.data / 16, digits.target, random_state=0)
    x_train, x_test = (torch.tensor(part, dtype=torch.float32, device=device) for part in parts[:2])
    y_train, y_test = (torch.tensor(part, device=device) for part in parts[2:])

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    print(f"training on {device} with lr={options.lr}")
    for epoch in range(1, options.epochs + 1):
        for batch in torch.randperm(len(x_train), device=device).split(64):
            loss = nn.functional.cross_entropy(model(x_train[batch]), y_train[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 5 == 0:
            print(f"epoch {epoch:3}  loss {loss.item():.4f}")

    with torch.no_grad():
        right = (model(x_test).argmax(1) == y_test).float().mean().item()
    print(f"accuracy {right:.3f}")


if __name__ == "__main__":
    main()
