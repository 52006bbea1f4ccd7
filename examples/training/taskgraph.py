"""Train a network like that of the DAHL paper on StarPU with generated images.

See docs/training-taskgraph.md.
"""

from __future__ import annotations

import argparse
import sys
import time

from slurm_energy.errors import EnergyError

LEARNING_RATE = 0.001


def main() -> int:
    """Train, and print the loss, the time and the number of parts into which each batch was split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--height", type=int, default=26, help="rows of an image (default 26)")
    parser.add_argument("--width", type=int, default=34, help="columns of an image (default 34)")
    parser.add_argument("--samples", type=int, default=1024, help="images (default 1024)")
    parser.add_argument("--batch", type=int, default=32, help="images per update (default 32)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the images (default 5)")
    parser.add_argument("--distributed", action="store_true", help="share each batch among the tasks of srun")
    arguments = parser.parse_args()
    try:
        return train(arguments)
    except EnergyError as error:
        print(f"taskgraph: {error}", file=sys.stderr)
        return error.exit_code


def train(arguments: argparse.Namespace) -> int:
    """Train on images whose class is visible as their brightness."""
    import numpy as np

    from slurm_energy.training import taskgraph as tg

    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, arguments.samples)
    shape = (arguments.samples, 3, arguments.height, arguments.width)
    images = generator.standard_normal(shape, np.float32) + labels[:, None, None, None] / 5
    features = 32 * ((arguments.height - 2) // 2) * ((arguments.width - 2) // 2)
    model = tg.Sequential(
        tg.Conv2d(3, 32, 3), tg.ReLU(), tg.MaxPool2d(2), tg.Flatten(), tg.Linear(features, 10)
    )
    trainer = tg.Trainer(model, LEARNING_RATE, arguments.batch, distributed=arguments.distributed)
    rank, ranks = trainer.rank()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    losses = trainer.fit(images, labels, arguments.epochs, shuffle_seed=1)
    if rank:
        return 0
    print(f"processes {ranks}, workers in each {trainer.workers}")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"time {time.perf_counter() - start_s:.2f} s, CPU time {time.process_time() - start_cpu_s:.2f} s")
    print(trainer.statistics())
    return 0


if __name__ == "__main__":
    sys.exit(main())
