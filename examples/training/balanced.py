"""Train a small CNN on synthetic images with `slurm_energy.training.balanced`; see docs/training-balanced.md.

The two calls of `balanced` and `loader.epochs` are all that differs from a script with
DistributedDataParallel. Prints one JSON line per epoch on rank 0.
"""

import argparse
import json
import logging
import os
import time

import torch

from slurm_energy.training import balanced


def images(count, side):
    """Return images with a bright square in one of four quarters; the quarter is the class."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(count, 3, side, side, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    half = side // 2
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        picture[:, row * half : (row + 1) * half, column * half : (column + 1) * half] += 0.5
    return torch.utils.data.TensorDataset(pictures, labels)


def network(side, outputs):
    """Return the layers of the DAHL paper: convolution, ReLU, max pooling, flatten, dense."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * (side // 2) ** 2, outputs),
    )


def main():
    """Train on the images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=3840, help="images of an epoch")
    parser.add_argument("--side", type=int, default=32, help="pixels of a side of an image")
    parser.add_argument("--outputs", type=int, default=4, help="outputs of the dense layer, at least 4")
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--goal", choices=("time", "energy", "edp"), default="edp")
    parser.add_argument("--checkpoint", help="file on a shared file system")
    parser.add_argument("--checkpoint-every-s", type=float, default=30.0)
    parser.add_argument("--equal", action="store_true", help="keep equal shares")
    parser.add_argument("--all-ranks", action="store_true", help="no rank pauses")
    args = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("slurm_energy").setLevel(logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network(args.side, args.outputs).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, loader = balanced.distribute(
        model,
        images(args.samples, args.side),
        global_batch=args.global_batch,
        goal=args.goal,
        state={"optimizer": optimizer},
        checkpoint=args.checkpoint,
        checkpoint_every_s=args.checkpoint_every_s,
        balance=not args.equal,
        may_pause=not args.all_ranks,
    )
    for epoch in loader.epochs(args.epochs):
        start_s = time.perf_counter()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        if os.environ.get("SLURM_PROCID", "0") == "0":
            seconds = round(time.perf_counter() - start_s, 3)
            line = {"epoch": epoch, "seconds": seconds, "end_unix": time.time(), "samples": loader.samples}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
