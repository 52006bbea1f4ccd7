"""Simulated nodes: live reports, records, traces and periods that agents of a large cluster would send.

Each job runs on several nodes. The nodes run jobs without pause. Energies are plausible, but not
measured on real hardware.
"""

from __future__ import annotations

import functools
import random
import time
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.agent.metering.trace import TraceBuilder
from slurm_energy.node_period import NodePeriod, PeriodEnergy, PeriodJob
from slurm_energy.protocol.live_reports import LiveReport
from slurm_energy.records import ComponentEnergy, EnergyRecord, JobDevice

_WATTS: Final = {"cpu": 300.0, "dram": 40.0, "other": 120.0}
_GPU_WATTS: Final = 350.0
_SOURCES: Final = {"cpu": "powercap:intel-rapl", "dram": "powercap:intel-rapl", "other": "node minus others"}
_USERS: Final = 250
_ACCOUNTS_FIRST_UID: Final = 20_000
_UJ: Final = 1_000_000
_STEPS: Final = ("batch", "0")


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """Description of the simulated nodes and their jobs.

    Attributes:
        cluster: name of the cluster.
        prefix: prefix of the node names. A number follows it.
        gpus: GPUs per node.
        job_s: mean duration of the jobs in seconds.
        job_nodes: nodes per job.
        trace_points: number of intervals in a power trace; 0 means that records have no traces.
    """

    cluster: str = "cluster"
    prefix: str = "node"
    gpus: int = 0
    job_s: float = 7200.0
    job_nodes: int = 4
    trace_points: int = 7200

    @property
    def watts(self) -> dict[str, float]:
        """Mean power by component."""
        return _WATTS | {f"gpu[{index}]": _GPU_WATTS for index in range(self.gpus)}


class SimulatedNode:
    """One simulated node.

    The nodes form groups of `job_nodes` nodes with successive numbers. All nodes of a group run the same
    jobs. A job ends on all its nodes at the same time.

    Args:
        model: description of the node.
        number: number of the node.
        run: number that distinguishes several simulations with one database.
        now: Unix time at which the simulation starts.
    """

    def __init__(self, model: SimulatedWorkload, number: int, run: int, now: float) -> None:
        self.model, self.number = model, number
        self.name = f"{model.prefix}{number:05d}"
        self._group = number // model.job_nodes
        self._lengths = random.Random(f"{run}/{self._group}")  # equal on all nodes of a job
        self._job_id = run * 1_000_000_000 + self._group * 10_000
        self._uid = _ACCOUNTS_FIRST_UID + self._group % _USERS
        # The job at the start has run for a while.
        self.job_start = now - self._lengths.uniform(0.0, model.job_s)
        self.job_end = now + self._lengths.expovariate(1.0 / model.job_s)

    def live_report(self) -> LiveReport:
        """Return a live report of the simulated node: its power, its running job and the job's step."""
        now = time.time()
        watts: dict[str, float | None] = {name: round(value, 1) for name, value in self.model.watts.items()}
        job = self._record(None, now, extra=(("watts", dict(watts)),))
        return LiveReport(self.model.cluster, self.name, now, watts, (job, self._record("0", now)))

    def end_job(self) -> list[dict[str, Any]]:
        """End the running job and start the next one.

        Return the records of the ended job, which a simulated agent then delivers.
        """
        end = self.job_end
        job = self._record(None, end)
        items: list[dict[str, Any]] = [{"record": job.to_json(), "trace": self._trace()}]
        items += [{"record": self._record(step, end).to_json(), "trace": None} for step in _STEPS]
        self._job_id += 1
        self.job_start, self.job_end = end, end + self._lengths.expovariate(1.0 / self.model.job_s)
        return items

    def period(self, start: int, end: int) -> NodePeriod:
        """Return the energy of the simulated node from one time to another.

        All energy except the idle energy is charged to one job.
        """
        energies = {name: int(watts * (end - start)) * _UJ for name, watts in self.model.watts.items()}
        components = {
            name: PeriodEnergy(energy, energy - energy // 100, energy // 100, 0)
            for name, energy in energies.items()
        }
        job = {name: energy - energy // 100 for name, energy in energies.items()}
        jobs = (PeriodJob(self._job_id, 0, self._uid, job),)
        return NodePeriod(self.model.cluster, self.name, start, end, components, jobs)

    def _record(self, step: str | None, end: float, extra: tuple[tuple[str, Any], ...] = ()) -> EnergyRecord:
        model, elapsed_s = self.model, max(end - self.job_start, 1.0)
        gpus = tuple(range(model.gpus))
        watts = model.watts
        is_job = step is None
        return EnergyRecord(
            cluster=model.cluster,
            node=self.name,
            job_id=self._job_id,
            uid=self._uid,
            policy="monitor",
            start=end - elapsed_s,
            end=end,
            components=tuple(
                ComponentEnergy(name, round(value * elapsed_s, 6), _SOURCES.get(name, "nvml:total_energy"))
                for name, value in watts.items()
            ),
            step=step,
            user=f"user{self._uid}",
            partition="batch",
            fingerprint=f"{self._uid:064x}" if is_job else None,
            requested={"policy": "monitor"} if is_job else {},
            devices=(JobDevice("cpu", "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz"),) if is_job else (),
            cpus=64,
            gpus=gpus,
            mean_watts=round(sum(watts.values()), 3),
            peak_watts=round(1.2 * sum(watts.values()), 3),
            extra=extra,
        )

    def _trace(self) -> dict[str, Any] | None:
        points = self.model.trace_points
        if not points:
            return None
        interval_s = max((self.job_end - self.job_start) / points, 1.0)
        count = max(1, min(points, int((self.job_end - self.job_start) / interval_s)))
        bound = 1 << (count - 1).bit_length()  # few distinct lengths: each is computed once
        columns = _trace_columns(tuple(self.model.watts.items()), min(bound, points))
        return {"start": self.job_start, "interval_s": interval_s, "columns": columns}


@functools.lru_cache(maxsize=64)
def _trace_columns(watts: tuple[tuple[str, float], ...], points: int) -> dict[str, str]:
    """Return the columns of a power trace. The power varies by a few watts from second to second."""
    rng = random.Random(points)
    builder = TraceBuilder(0.0, 1.0, [name for name, _ in watts])
    for second in range(points):
        joules = {name: max(0.0, rng.gauss(mean, mean / 50)) for name, mean in watts}
        builder.add(float(second), second + 1.0, joules)
    columns: dict[str, str] = builder.encode(0.0)["columns"]
    return columns
