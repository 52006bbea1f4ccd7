"""Training run of one rank of a program that divides its batches among the ranks.

The module controls the training steps, the measurement windows, the division of the batches and the
checkpoints.
"""

from __future__ import annotations

import logging
import math
import socket
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed

from slurm_energy.profiling.energy_reader import EnergyReader
from slurm_energy.profiling.profiler import open_energy_reader, process_identity
from slurm_energy.training.allocation import RankFacts, check, placement
from slurm_energy.training.balancer import Balancer, RankWindow
from slurm_energy.training.checkpoint import TrainingCheckpoint
from slurm_energy.training.loader import BalancedLoader, StepPlan
from slurm_energy.training.options import BalancedOptions
from slurm_energy.training.rank_meter import RankMeter
from slurm_energy.training.ranks import Ranks, finite_or_none
from slurm_energy.training.replica import BalancedModel

log = logging.getLogger("slurm_energy")

_IDLE_S = 2.0
"""Seconds in which all ranks wait so that their idle power can be measured."""


def start(
    model: Any,
    dataset: Any,
    options: BalancedOptions,
    state: Mapping[str, Any],
    environment: Mapping[str, str],
) -> tuple[BalancedModel, BalancedLoader]:
    """Connect the ranks, check the allocation, and return the model and the loader of this rank.

    Args:
        model: the model, on its device.
        dataset: a map-style data set.
        options: options of the program.
        state: objects to save in checkpoints and to restore, such as the optimizer.
        environment: environment variables of the process.

    Raises:
        EnergyError: the allocation, an option or the checkpoint cannot be used.
    """
    own = placement(environment)
    balanced = BalancedModel(model, options.ddp_options)
    ranks = Ranks(own, is_gpu=balanced.is_gpu, lost_after_s=options.lost_after_s)
    needs_nccl = balanced.is_gpu and not torch.distributed.is_nccl_available()
    node = environment.get("SLURMD_NODENAME") or socket.gethostname()
    facts = ranks.gather_objects(
        RankFacts(node, torch.cuda.device_count(), balanced.is_gpu, "nccl" if needs_nccl else "")
    )
    check(facts, options.global_batch, is_restart=own.is_restart)
    ranks_on_node = sum(1 for fact in facts if fact.node == node)
    session = TrainingSession(balanced, ranks, options, state, ranks_on_node)
    return balanced, BalancedLoader(session, dataset, options)


class TrainingSession:
    """State of a training run on this rank.

    Attributes:
        model: the model of this rank.
        ranks: process groups of all ranks of the program.
        epoch: number of the current epoch.
        step: number of the next step in the current epoch.
    """

    def __init__(
        self,
        model: BalancedModel,
        ranks: Ranks,
        options: BalancedOptions,
        state: Mapping[str, Any],
        ranks_on_node: int,
    ) -> None:
        self.model, self.ranks = model, ranks
        self.epoch = self.step = 0
        self._options, self._state = options, state
        self._checkpoint = TrainingCheckpoint(options.checkpoint, options.checkpoint_every_s)
        self._active: tuple[int, ...] = ()
        self._samples: tuple[int, ...] = ()
        self._started: Any = None
        self._steps: list[tuple[float, float]] = []
        self._reader = self._open_reader()
        self._meter = RankMeter(self._reader, ranks_on_node)
        self._balancer = self._measured_balancer(options)
        self._is_noted = False
        self._restore()

    @property
    def samples(self) -> tuple[int, ...]:
        """Number of samples that each rank processes in the next planned step."""
        return self._balancer.samples

    def begin_epoch(self) -> None:
        """Start to measure the time and energy of an epoch of the training."""
        self._meter.resume()
        self._started = self.model.clock.now()

    def begin_step(self, plan: StepPlan) -> None:
        """Prepare a training step on this rank.

        The ranks that compute in this step form a group. If the group has changed, it is built anew. Ranks
        that join it get the training state of a rank that has computed before. The gradients of this rank are
        weighted by its share of the samples.

        Args:
            plan: the ranks that compute in this step, and the number of samples of each rank.
        """
        if plan.active != self._active:
            self._regroup(plan.active)
        if plan.is_full and plan.samples != self._samples:
            self._steps.clear()
            self._meter.take()  # a window holds steps with equal shares only
            self._samples = plan.samples
        exchange = self.model.exchange
        if exchange is not None:
            exchange.weight = plan.samples[self.ranks.rank] / sum(plan.samples)
            exchange.computed = exchange.exchanged = None

    def end_step(self, plan: StepPlan) -> None:
        """Record the times of a training step.

        At the end of a measurement window, divide the batch among the ranks again.
        """
        self.step = plan.step + 1
        if plan.is_full:
            ended = self.model.clock.now()
            self._steps.append(self._times(ended))
            if len(self._steps) >= self._options.window_steps:
                self._end_window()
        if self._checkpoint.is_due and self._active and self.ranks.rank == self._active[0]:
            self._checkpoint.write(self._content())
        self._started = self.model.clock.now()

    def end_epoch(self) -> None:
        """Stop measuring time and energy, and increase the number of the epoch."""
        self._meter.pause()
        self.epoch, self.step = self.epoch + 1, 0

    def finish(self) -> None:
        """Send the trained model to the ranks that pause, and write the last checkpoint."""
        if len(self._active) < self.ranks.count:
            self._send_state(self._active[0] if self._active else 0)
        if self.ranks.rank == 0:
            self._checkpoint.write(self._content())

    def _times(self, ended: Any) -> tuple[float, float]:
        """Return the seconds of a step in which this rank computed, and the seconds that the step took."""
        clock, exchange = self.model.clock, self.model.exchange
        step_s = clock.seconds(self._started, ended)
        if exchange is None or exchange.exchanged is None:
            return step_s, step_s
        return max(1e-6, step_s - clock.seconds(exchange.computed, exchange.exchanged)), step_s

    def _end_window(self) -> None:
        busy, whole = (statistics.median(column) for column in zip(*self._steps, strict=True))
        steps = len(self._steps)
        self._steps.clear()
        window_s, joules = self._meter.take()
        rows = self.ranks.gather([busy, whole, window_s, math.nan if joules is None else joules])
        if not self._options.balance:
            return
        windows = [
            RankWindow(count, row[0] if count else 0.0, row[1], row[2], steps, finite_or_none(row[3]))
            for count, row in zip(self._samples, rows, strict=True)
        ]
        changed = self._balancer.samples == self._samples and self._balancer.add(windows)
        split = self._balancer.predicted
        if changed and split is not None and self.ranks.rank == 0:
            energy = "" if split.step_joules is None else f" and {split.step_joules:.4g} J"
            counts = " ".join(map(str, split.samples))
            where = f"epoch {self.epoch}, step {self.step}"
            log.info("balanced: %s: samples %s, expects %.3g s%s a step", where, counts, split.step_s, energy)

    def _regroup(self, active: tuple[int, ...]) -> None:
        """Change the set of ranks that exchange gradients, from this training step on."""
        resumed = set(active) - set(self._active)
        if self._active and resumed:
            self._send_state(self._active[0])
        self.model.join(self.ranks.gradient_group(active))
        self._active = active

    def _send_state(self, source: int) -> None:
        content = self.ranks.send_state(self._content(), source)
        if self.ranks.rank != source and self.ranks.rank not in self._active:
            self._load(content)

    def _content(self) -> dict[str, Any]:
        return {
            "model": self.model.module.state_dict(),
            "state": {name: entry.state_dict() for name, entry in self._state.items()},
            "epoch": self.epoch,
            "step": self.step,
            "balancer": self._balancer.to_json(),
        }

    def _load(self, content: Mapping[str, Any]) -> None:
        self.model.module.load_state_dict(content["model"])
        for name, entry in self._state.items():
            if name in content["state"]:
                entry.load_state_dict(content["state"][name])

    def _restore(self) -> None:
        content = self._checkpoint.read()
        if content is not None:
            self._load(content)
            self.epoch, self.step = int(content["epoch"]), int(content["step"])
            self._balancer.restore(content["balancer"])

    def _open_reader(self) -> EnergyReader | None:
        needs_energy = self._options.balance and self._options.goal != "time"
        return open_energy_reader(process_identity().job_id) if needs_energy else None

    def _measured_balancer(self, options: BalancedOptions) -> Balancer:
        """Return the object that divides the batch among the ranks (balancer).

        Before the training starts, the time for exchanging gradients and the idle power of the ranks are
        measured for it.
        """
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        exchange = self.ranks.probe(sum(4 * parameter.numel() for parameter in parameters))
        idle: list[float | None] = [None] * self.ranks.count
        if options.balance and options.goal != "time":
            self._meter.resume()
            time.sleep(_IDLE_S)
            seconds, joules = self._meter.take()
            self._meter.pause()
            watts = joules / seconds if joules is not None else math.nan
            idle = [finite_or_none(row[0]) for row in self.ranks.gather([watts])]
            if self.ranks.rank == 0 and (
                unknown := [rank for rank, value in enumerate(idle) if value is None]
            ):
                log.warning(
                    "balanced: the power of ranks %s is unknown: samples are divided by time", unknown
                )
        return Balancer(
            self.ranks.count,
            options.global_batch,
            options.goal,
            options.max_slowdown,
            exchange,
            idle,
            may_pause=options.may_pause,
        )
