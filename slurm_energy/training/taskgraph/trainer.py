"""Training, gradients and predictions of a model on StarPU workers."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from slurm_energy.errors import UsageError
from slurm_energy.training.taskgraph.granularity import BatchSplit, GranularityTuner
from slurm_energy.training.taskgraph.model import Array, Sequential
from slurm_energy.training.taskgraph.native_library import StageSpec
from slurm_energy.training.taskgraph.runtime import GRADIENT, PREDICT, RUNTIME, TRAIN, NativeNetwork
from slurm_energy.training.taskgraph.stages import Stage, plan_stages

Losses: TypeAlias = npt.NDArray[np.float64]
_SPAN_BATCHES = 256
"""Batches per call of the C library: between calls Python handles signals."""


@dataclass(frozen=True, slots=True)
class TrainerStatistics:
    """Statistics of the tasks that a trainer has executed since its creation.

    Attributes:
        chunks: number of tasks into which a batch is split.
        groups: number of groups of features into which the stages of a chunk are split.
        tasks: number of executed tasks.
        task_s: processor seconds inside tasks.
        overhead_per_task_s: processor seconds that StarPU needs per task, measured when StarPU started.
    """

    chunks: int
    groups: int
    tasks: int
    task_s: float
    overhead_per_task_s: float


class Trainer:
    """Stochastic gradient descent on the mean softmax cross entropy.

    Args:
        model: the model; its parameters are converted to `dtype` and updated in place.
        learning_rate: factor of the gradient in an update.
        batch_size: samples per update; the last batch of an epoch may be smaller.
        dtype: element type of the computation: "float32" or "float64".
        workers: number of StarPU workers; by default the number of processors that this process may use.
            All trainers of a process share one StarPU. The trainer that was used last sets the number.
        granularity: into how many tasks the computation is split. A number N splits the samples of a
            batch into N chunks. A pair (N, G) also splits the features of each stage of a chunk into G
            groups. With numbers, the results of all runs are equal bit by bit. With "auto", measurements
            determine the split. Sums may then be formed in another order in each run.
        distributed: share each batch among the processes that srun or mpirun started (StarPU-MPI). All
            processes call the same functions with the same values and keep equal parameters.
    """

    def __init__(
        self,
        model: Sequential,
        learning_rate: float = 0.01,
        batch_size: int = 64,
        dtype: str = "float32",
        workers: int | None = None,
        granularity: int | tuple[int, int] | str = "auto",
        distributed: bool = False,
    ) -> None:
        workers = len(os.sched_getaffinity(0)) if workers is None else workers
        if dtype not in ("float32", "float64"):
            raise UsageError(f"dtype={dtype!r}", "must be float32 or float64")
        for name, value, maximum in (("batch_size", batch_size, 1 << 20), ("workers", workers, 256)):
            if not isinstance(value, int) or not 1 <= value <= maximum:
                raise UsageError(f"{name}={value!r}", f"must be an integer from 1 to {maximum}")
        self.model = model
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.workers = workers
        self.distributed = distributed

        self._dtype = np.dtype(dtype)
        self._fixed_split = _fixed_split(granularity, batch_size)
        self._split = self._fixed_split or BatchSplit(1)
        self._tuner: GranularityTuner | None = None
        self._network: NativeNetwork | None = None
        self._image_shape: tuple[int, int, int] | None = None
        self._classes = 0
        self._gradients: dict[str, Array] = {}
        model.convert(self._dtype)

    def fit(self, images: Any, labels: Any, epochs: int = 1, shuffle_seed: int | None = None) -> Losses:
        """Train, and return the mean loss of each batch before the update with that batch.

        Args:
            images: array (samples, channels, height, width).
            labels: class of each sample, from 0.
            epochs: passes over the samples.
            shuffle_seed: seed of the order of the samples, which is different in each epoch; None keeps the
                order.

        Raises:
            UsageError: the shapes, the labels or the model do not fit.
            UnavailableError: a compiler or StarPU is missing.
        """
        images, labels, network = self._prepare(images, labels)
        generator = np.random.default_rng(shuffle_seed)
        per_epoch = -(-len(images) // self.batch_size)
        losses = np.zeros(per_epoch * epochs)
        for epoch in range(epochs):
            order = np.arange(len(images), dtype=np.int64)
            if shuffle_seed is not None:
                generator.shuffle(order)
            self._fit_epoch(
                network, images, labels, order, losses[epoch * per_epoch : (epoch + 1) * per_epoch]
            )
        return losses

    def predict(self, images: Any) -> Array:
        """Return the last layer's values (logits) for each sample."""
        images, _, network = self._prepare(images, None)
        outputs = np.empty((len(images), self._classes), self._dtype)
        network.run(PREDICT, images, None, np.arange(len(images), dtype=np.int64), outputs=outputs)
        return outputs

    def gradients(self, images: Any, labels: Any) -> tuple[float, dict[str, Array]]:
        """Return the mean loss of one batch, and its gradients by parameter key. Nothing is updated."""
        if len(images) > self.batch_size:
            raise UsageError(f"{len(images)} samples", f"more than the batch size {self.batch_size}")
        images, labels, network = self._prepare(images, labels)
        losses = np.zeros(1)
        network.run(GRADIENT, images, labels, np.arange(len(images), dtype=np.int64), losses=losses)
        return float(losses[0]), {name: values.copy() for name, values in self._gradients.items()}

    def statistics(self) -> TrainerStatistics:
        """Return into how many parts the training is divided, and the number and time of executed tasks."""
        task_s, tasks = self._network.counters() if self._network and self._network.is_open else (0.0, 0)
        return TrainerStatistics(self._split.chunks, self._split.groups, tasks, task_s, RUNTIME.overhead_s)

    def close(self) -> None:
        """Free the memory of the network; the next call allocates it again."""
        if self._network:
            self._network.close()
            self._network = None

    def _fit_epoch(
        self, network: NativeNetwork, images: Array, labels: Array, order: Array, losses: Losses
    ) -> None:
        done = 0
        while done < len(losses):
            tuner, batches = self._tuner, _SPAN_BATCHES
            if tuner is not None and tuner.choice is None:
                split, batches = tuner.next_trial()
                self._set_split(network, split)
            batches = min(batches, len(losses) - done)
            part = order[done * self.batch_size : (done + batches) * self.batch_size]
            start = (time.perf_counter(), time.process_time(), *network.counters())
            network.run(TRAIN, images, labels, part, self.learning_rate, losses[done : done + batches])
            done += batches
            if tuner is not None and tuner.choice is None and len(part) == batches * self.batch_size:
                end = (time.perf_counter(), time.process_time(), *network.counters())
                wall_s, cpu_s, task_s, tasks = (
                    after - before for before, after in zip(start, end, strict=True)
                )
                tuner.record(wall_s, cpu_s, task_s, int(tasks), batches)
                if tuner.choice is not None:
                    self._set_split(network, tuner.choice)

    def rank(self) -> tuple[int, int]:
        """Return the rank of this process and the number of processes; (0, 1) if not distributed."""
        RUNTIME.start(self.workers, self.distributed)
        return RUNTIME.rank()

    def _set_split(self, network: NativeNetwork, split: BatchSplit) -> None:
        if split != self._split:
            network.split(split.chunks, split.groups)
            self._split = split

    def _prepare(self, images: Any, labels: Any) -> tuple[Array, Array, NativeNetwork]:
        images = np.ascontiguousarray(images, self._dtype)
        if images.ndim != 4 or not len(images):
            raise UsageError(
                f"images of the shape {images.shape}",
                "needs (samples, channels, height, width), samples >= 1",
            )
        shape = (images.shape[1], images.shape[2], images.shape[3])
        network = self._open(shape)
        if labels is not None:
            labels = np.ascontiguousarray(labels, np.int64)
            if labels.shape != (len(images),):
                raise UsageError(
                    f"labels of the shape {labels.shape}", f"needs one for each of {len(images)} images"
                )
            if labels.min() < 0 or labels.max() >= self._classes:
                raise UsageError(
                    f"labels {labels.min()} to {labels.max()}",
                    f"the model has the classes 0 to {self._classes - 1}",
                )
        return images, labels, network

    def _open(self, shape: tuple[int, int, int]) -> NativeNetwork:
        stages, self._classes = plan_stages(self.model.layers, shape)
        RUNTIME.start(self.workers, self.distributed)
        if self._network and self._network.is_open and shape == self._image_shape:
            return self._network
        self.close()
        parameters = self.model.parameters()
        self._gradients = {name: np.zeros_like(values) for name, values in parameters.items()}
        specs = [_spec(stage, parameters, self._gradients) for stage in stages]
        self._network = NativeNetwork(specs, self._dtype, shape, self.batch_size)
        self._image_shape = shape
        self._split = self._fixed_split or BatchSplit(
            min(self.workers, self.batch_size) if self.distributed else 1
        )
        self._tuner = None
        if self._fixed_split is None and not self.distributed:
            self._tuner = GranularityTuner(self.workers, self.batch_size, RUNTIME.overhead_s)
            self._split = self._tuner.choice or self._split
        self._network.split(self._split.chunks, self._split.groups)
        return self._network


def _fixed_split(granularity: int | tuple[int, int] | str, batch_size: int) -> BatchSplit | None:
    if granularity == "auto":
        return None
    pair = (granularity, 1) if isinstance(granularity, int) else granularity
    if (
        not isinstance(pair, tuple)
        or len(pair) != 2
        or not all(isinstance(n, int) and 1 <= n <= 256 for n in pair)
    ):
        raise UsageError(
            f"granularity={granularity!r}", 'must be "auto", or one or two integers from 1 to 256'
        )
    return BatchSplit(min(pair[0], batch_size), pair[1])


def _spec(stage: Stage, parameters: dict[str, Array], gradients: dict[str, Array]) -> StageSpec:
    spec = StageSpec(kind=stage.kind, outputs=stage.outputs, relu=stage.relu)
    spec.kernel_h, spec.kernel_w = stage.kernel
    spec.stride_h, spec.stride_w = stage.strides
    spec.pad_h, spec.pad_w = stage.paddings
    spec.pool_h, spec.pool_w = stage.pool
    for field, name in (("weights", "weight"), ("bias", "bias")):
        if (key := f"{stage.layer_index}.{name}") in parameters:
            setattr(spec, field, parameters[key].ctypes.data)
            setattr(spec, f"{field}_gradient", gradients[key].ctypes.data)
    return spec
