"""The StarPU runtime of this process, which executes the tasks of the task-graph trainer.

All networks use the same runtime. If the number of StarPU workers is changed, all networks are closed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from slurm_energy.errors import EnergyError, UnavailableError, UsageError
from slurm_energy.training.taskgraph.native_library import StageSpec, load_library

TRAIN, GRADIENT, PREDICT = range(3)
_OVERHEAD_TASKS = 600


class NativeNetwork:
    """A network in the C library.

    The arrays to which the stages point must outlive the network.

    Args:
        stages: stages of the network from input to output.
        dtype: element type of the arrays, as a numpy type.
        image_shape: channels, height and width.
        batch_size: samples of a full batch.
    """

    def __init__(
        self, stages: Sequence[StageSpec], dtype: Any, image_shape: tuple[int, int, int], batch_size: int
    ) -> None:
        self._library = RUNTIME.library()
        specs = (StageSpec * len(stages))(*stages)
        item_bytes = np.dtype(dtype).itemsize
        self._pointer = self._library.tg_network_new(specs, len(stages), item_bytes, *image_shape, batch_size)
        if not self._pointer:
            raise EnergyError("the network", "not enough memory", "use a smaller batch size")
        RUNTIME.networks.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the network is usable. A change of the number of StarPU workers closes the network."""
        return bool(self._pointer)

    def close(self) -> None:
        """Free the memory."""
        if self._pointer:
            self._library.tg_network_free(self._pointer)
            self._pointer = None

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            self.close()

    def split(self, chunks: int, groups: int) -> None:
        """Set into how many tasks the computation of the network is split.

        The samples of a batch are split into `chunks` parts. The features of each stage of the network are
        split into `groups` parts.
        """
        _check(self._library.tg_network_split(self._pointer, chunks, groups))

    def counters(self) -> tuple[float, int]:
        """Return the processor seconds spent in tasks, and the number of executed tasks."""
        values = (ctypes.c_int64 * 2)()
        self._library.tg_counters(self._pointer, values)
        return values[0] / 1e9, values[1]

    def run(
        self,
        mode: int,
        images: Any,
        labels: Any,
        order: Any,
        learning_rate: float = 0.0,
        losses: Any = None,
        outputs: Any = None,
    ) -> None:
        """Run the network on all samples that `order` lists, batch by batch, and wait for the end.

        The arrays `images`, `labels`, `order`, `losses` and `outputs` must be contiguous.
        """
        pointers = [None if array is None else array.ctypes.data for array in (images, labels, order)]
        ends = [None if array is None else array.ctypes.data for array in (losses, outputs)]
        _check(self._library.tg_run(self._pointer, mode, *pointers, len(order), learning_rate, *ends))


class _Runtime:
    def __init__(self) -> None:
        self.workers = 0
        self.is_distributed = False
        self.networks: weakref.WeakSet[NativeNetwork] = weakref.WeakSet()
        self.overhead_s = 0.0

    def library(self) -> ctypes.CDLL:
        """Return the C library in use."""
        return load_library(self.is_distributed)

    def rank(self) -> tuple[int, int]:
        """Return the rank of this process and the number of processes."""
        return self.library().tg_rank(), self.library().tg_ranks()

    def start(self, workers: int, distributed: bool = False) -> None:
        """Start StarPU with a number of workers. Networks built for another number of workers are closed.

        Args:
            workers: number of workers.
            distributed: whether to use StarPU-MPI. The number of workers then cannot change, because MPI
                starts once in a process.
        """
        if (workers, distributed) == (self.workers, self.is_distributed):
            return
        if self.is_distributed and self.workers:
            raise UsageError(f"workers={workers}, distributed={distributed}", "MPI runs with other values")
        library = load_library(distributed)
        if self.workers:
            self.stop()
        else:
            atexit.register(self.stop)
        if distributed and "SLURM_PROCID" in os.environ and "PMIX_RANK" not in os.environ:
            raise UnavailableError("MPI", "srun did not start this process with PMIx", "use srun --mpi=pmix")
        if library.tg_start(workers):
            raise UnavailableError("StarPU", f"did not start with {workers} workers")
        self.workers, self.is_distributed = workers, distributed

        self.overhead_s = min(library.tg_task_overhead_s(_OVERHEAD_TASKS) for _ in range(3))

    def stop(self) -> None:
        """Close all networks and stop StarPU."""
        for network in list(self.networks):
            network.close()
        self.library().tg_stop()
        self.workers = 0


RUNTIME = _Runtime()


def _check(error: int) -> None:
    if error:
        raise EnergyError("StarPU", "not enough memory" if error == -1 else "refused a task")
