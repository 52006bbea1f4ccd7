"""Training of convolutional networks as a graph of StarPU tasks.

Names and their meaning are those of PyTorch.

    from slurm_energy.training import taskgraph as tg
    layers = tg.Conv2d(3, 32, 3), tg.ReLU(), tg.MaxPool2d(2), tg.Flatten(), tg.Linear(32 * 12 * 16, 10)
    model = tg.Sequential(*layers)
    losses = tg.Trainer(model, learning_rate=0.01, batch_size=64).fit(images, labels)

The extra `training` (numpy), a C compiler, StarPU and OpenBLAS are needed. The C sources are compiled at the
first use. docs/training-taskgraph.md describes the tasks. Source: DAHL, sections 3 to 5.
"""

from slurm_energy.errors import UnavailableError, install_extra

try:
    import numpy as _numpy  # noqa: F401
except ImportError:
    raise UnavailableError(
        "the task-graph trainer", "numpy is not installed", install_extra("training")
    ) from None

from slurm_energy.training.taskgraph.layers import Conv2d, Flatten, Layer, Linear, MaxPool2d, ReLU
from slurm_energy.training.taskgraph.model import Sequential
from slurm_energy.training.taskgraph.trainer import Trainer, TrainerStatistics

__all__ = [
    "Conv2d",
    "Flatten",
    "Layer",
    "Linear",
    "MaxPool2d",
    "ReLU",
    "Sequential",
    "Trainer",
    "TrainerStatistics",
]
