"""Batches of one rank: the rank's samples of each global batch.

The order of the samples in an epoch does not depend on the ranks.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from slurm_energy.training.options import BalancedOptions
from slurm_energy.training.shares import scaled

if TYPE_CHECKING:
    from slurm_energy.training.session import TrainingSession


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Division of one global batch among the ranks of a training.

    Attributes:
        epoch: number of the epoch.
        step: number of the step in its epoch.
        samples: samples of each rank.
        active: ranks that take part in the exchange of gradients.
        is_full: whether the batch is full. The last batch of an epoch may be smaller.
    """

    epoch: int
    step: int
    samples: tuple[int, ...]
    active: tuple[int, ...]
    is_full: bool


class _ShareSampler:
    """Batch sampler that yields the samples of this rank in one epoch.

    The training session decides how many samples of each global batch every rank gets (its share). With
    loading processes, the sampler runs ahead of the training by the same number of batches on all ranks. All
    ranks therefore change their shares at the same step.
    """

    def __init__(self, session: TrainingSession, samples: int, options: BalancedOptions) -> None:
        self._session, self._samples, self._options = session, samples, options
        self.plans: collections.deque[StepPlan] = collections.deque()
        self.epoch = self.first_step = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        batch = self._options.global_batch
        for step in range(self.first_step, len(self)):
            indices = order[step * batch : (step + 1) * batch]
            full = self._session.samples
            counts = full if len(indices) == batch else scaled(full, len(indices))
            active = tuple(rank for rank, count in enumerate(full) if count)
            self.plans.append(StepPlan(self.epoch, step, counts, active, len(indices) == batch))
            rank = self._session.ranks.rank
            start = sum(counts[:rank])
            # A rank without samples loads a sample that does not count, so that all ranks run ahead equally.
            yield indices[start : start + counts[rank]] or indices[:1]

    def __len__(self) -> int:
        return (self._samples + self._options.global_batch - 1) // self._options.global_batch

    def _order(self) -> list[int]:
        if not self._options.shuffle:
            return list(range(self._samples))
        generator = torch.Generator().manual_seed(self._options.seed + self.epoch)
        return [int(index) for index in torch.randperm(self._samples, generator=generator)]


class BalancedLoader:
    """Loader of the training batches of one process (rank) of a distributed training.

    An iteration over the loader also runs the training steps, the measurements and the checkpoints.

    A rank that pauses gets no batch until it resumes.

    Args:
        session: the training session of this rank.
        dataset: a map-style data set.
        options: options of the program.
    """

    def __init__(self, session: TrainingSession, dataset: Any, options: BalancedOptions) -> None:
        self._session = session
        self._sampler = _ShareSampler(session, len(dataset), options)
        self._data = torch.utils.data.DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=options.workers,
            collate_fn=options.collate,
            pin_memory=session.model.is_gpu,
            persistent_workers=options.workers > 0,
        )

    @property
    def samples(self) -> tuple[int, ...]:
        """Number of samples that each rank currently processes in a step."""
        return self._session.samples

    def __len__(self) -> int:
        """Return the number of steps in an epoch."""
        return len(self._sampler)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs up to `count`, beginning with the epoch of the checkpoint."""
        while self._session.epoch < count:
            yield self._session.epoch
        self._session.finish()

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank in the current epoch."""
        session, sampler = self._session, self._sampler
        sampler.epoch, sampler.first_step = session.epoch, session.step
        sampler.plans.clear()
        session.begin_epoch()
        for batch in self._data:
            plan = sampler.plans.popleft()
            session.begin_step(plan)
            if session.ranks.rank in plan.active:
                yield batch
            session.end_step(plan)
        session.end_epoch()
