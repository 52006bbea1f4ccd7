"""Process groups of a training program: one of all ranks for control, and groups of computing ranks."""

from __future__ import annotations

import datetime
import io
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from slurm_energy.errors import UnavailableError
from slurm_energy.training.allocation import RankPlacement
from slurm_energy.training.shares import ExchangeCost

_PROBES = 5


class Ranks:
    """The processes (ranks) of a distributed training program, and the communication between them.

    Control messages use a process group of their own with the library gloo. A rank without work then waits
    in this group without using a processor.

    Args:
        placement: number of this rank, and address at which all ranks meet.
        is_gpu: whether gradients are on GPUs and are exchanged with NCCL.
        lost_after_s: seconds after which a rank that does not answer counts as lost.

    Raises:
        UnavailableError: the ranks do not find each other.
    """

    def __init__(self, placement: RankPlacement, *, is_gpu: bool, lost_after_s: float) -> None:
        self.rank, self.count = placement.rank, placement.ranks
        self._backend = "nccl" if is_gpu else "gloo"
        self._timeout = datetime.timedelta(seconds=lost_after_s)
        self._groups: dict[tuple[int, ...], Any] = {}
        if not torch.distributed.is_initialized():
            self._initialize(placement)
        self.count, self.rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        is_default = torch.distributed.get_backend() == "gloo"
        self.control = (
            None if is_default else torch.distributed.new_group(backend="gloo", timeout=self._timeout)
        )

    def _initialize(self, placement: RankPlacement) -> None:
        where = f"{placement.address}:{placement.port}"
        try:
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"tcp://{where}",
                rank=placement.rank,
                world_size=placement.ranks,
                timeout=self._timeout,
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            todo = "set GLOO_SOCKET_IFNAME to the interface that connects the nodes, or MASTER_ADDR"
            raise UnavailableError(
                f"rank {placement.rank} cannot reach rank 0 at {where}", reason, todo
            ) from None

    def gradient_group(self, active: tuple[int, ...]) -> Any:
        """Return the process group of the ranks that compute.

        All ranks must call this function at the same step.

        Returns:
            None if this rank computes alone or not at all.
        """
        if len(active) < 2:
            return None
        if active not in self._groups:
            self._groups[active] = torch.distributed.new_group(
                list(active), backend=self._backend, timeout=self._timeout
            )
        return self._groups[active] if self.rank in active else None

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Exchange a list of numbers among all ranks, and return the list of each rank."""
        own = torch.tensor(list(numbers), dtype=torch.float64)
        parts = [torch.empty_like(own) for _ in range(self.count)]
        torch.distributed.all_gather(parts, own, group=self.control)
        return [part.tolist() for part in parts]

    def gather_objects(self, value: Any) -> list[Any]:
        """Send `value` to all ranks. Return the list of the values of all ranks."""
        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value, group=self.control)
        return values

    def send_state(self, state: Any, source: int) -> Any:
        """Send the state of one rank to all ranks and return it.

        Only the rank `source` needs to pass a state.
        """
        buffer = io.BytesIO()
        if self.rank == source:
            torch.save(state, buffer)
        data = [buffer.getvalue()]
        torch.distributed.broadcast_object_list(data, src=source, group=self.control)
        return state if self.rank == source else torch.load(io.BytesIO(data[0]), map_location="cpu")

    def probe(self, gradient_bytes: int) -> ExchangeCost:
        """Measure the latency per message and the transfer time of a gradient exchange among all ranks."""
        if self.count < 2:
            return ExchangeCost()
        small_s = self._reduce_seconds(1, _PROBES)
        large_s = self._reduce_seconds(max(1, gradient_bytes // 4), 2)
        # The slowest rank counts; all ranks must compute with the same numbers.
        worst = [max(column) for column in zip(*self.gather([small_s, large_s]), strict=True)]
        messages = 2 * (self.count - 1)
        message_s = worst[0] / messages
        return ExchangeCost(message_s, max(0.0, worst[1] / messages - message_s) * self.count)

    def _reduce_seconds(self, numbers: int, repeats: int) -> float:
        values = torch.zeros(numbers, dtype=torch.float32)
        times = []
        for _ in range(repeats + 1):
            start_s = time.perf_counter()
            torch.distributed.all_reduce(values, group=self.control)
            times.append(time.perf_counter() - start_s)
        return statistics.median(times[1:])  # the first one opens connections


def finite_or_none(number: float) -> float | None:
    """Return a number from `gather`, or None if the number is NaN, which stands for an unknown number."""
    return number if math.isfinite(number) else None
