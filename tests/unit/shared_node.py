"""An emulated node with an agent, for tests.

The node has 8 CPUs and two GPUs. The test sets its energy counters, CPU times and clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from hardware_tree import Tree
from test_sampler import HandClock

from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import AgentConfig, Config
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.driver import DeviceError, DeviceGoneError, EnergyCounter
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.devices.source_priority import NodePart, SourceSelection
from slurm_energy.records import EnergyRecord

CPUS = 8
SOURCES = {
    "cpu": "powercap:intel-rapl",
    "dram": "powercap:intel-rapl",
    "gpu[0]": "nvml:total_energy",
    "gpu[1]": "nvml:total_energy",
    "node": "pm_counters:node",
}
_GROUP = "sys/fs/cgroup/system.slice/n1_slurmstepd.scope/job_{}/cpu.stat"
_TICKS_PER_S = 100


class HandCounter(EnergyCounter):
    """An energy counter whose reading the test sets.

    `silent` makes the counter unreadable. `held_up` is a function that runs during each reading.
    """

    range_uj = None
    max_watts = 1e6

    def __init__(self, component: str) -> None:
        self.key = self.component = component
        self.source = SOURCES[component]
        self.value_uj = 5_000_000
        self.silent = self.gone = False
        self.held_up: Callable[[], None] = lambda: None

    def read(self) -> int:
        self.held_up()
        if self.gone:
            raise DeviceGoneError(self.key, "gone")
        if self.silent:
            raise DeviceError(self.key, "silent")
        return self.value_uj


class SharedNode:
    """Simulated node whose counters, clock and CPU times are set by the test.

    Args:
        folder: directory for the files of the node.
        components: components with a counter, in the order of discovery; `node` is a node meter.
        idle_watts: configured idle power.
        adds: components that the node meter does not include.
        slow: seconds between new values of a slow counter, by name of the counter.
    """

    def __init__(
        self,
        folder: Path,
        components: tuple[str, ...] = ("cpu", "dram", "node"),
        idle_watts: Mapping[str, float] | None = None,
        adds: frozenset[NodePart] = frozenset(),
        slow: Mapping[str, float] | None = None,
    ) -> None:
        self.folder = folder
        self.tree = Tree(folder / "node").cpus(CPUS)
        self.clock = HandClock()
        self.counters = {name: HandCounter(name) for name in components}
        self._adds = adds
        for name, interval_s in (slow or {}).items():
            self.counters[name].interval_s = interval_s
        self._busy_s = Fraction(0)
        self._used_s: dict[int, Fraction] = {}
        self.config = Config(agent=AgentConfig(sampling_hz=1.0, idle_watts=dict(idle_watts or {})))
        self._write_stat()
        self._open = contextlib.ExitStack()
        self.manager = self.start()

    def start(self) -> JobManager:
        """Start the agent."""
        self.state = StateDirectory(self.folder / "state")
        self._open.callback(self.state.close)
        manager = JobManager(self.config, self._devices(), self.state, self.clock)
        self._open.callback(manager._meter.close)
        manager.start()
        return manager

    def _devices(self) -> NodeDevices:
        found = discover(self.tree.root)
        self._open.callback(found.close)
        gpus = tuple(
            GpuInfo(index, index, "A100", None, None, None, None)
            for index in range(2)
            if f"gpu[{index}]" in self.counters
        )
        parts = tuple(counter for name, counter in self.counters.items() if name != "node")
        node = tuple(counter for name, counter in self.counters.items() if name == "node")
        return dataclasses.replace(
            found,
            hardware=dataclasses.replace(found.hardware, gpus=gpus),
            counters=parts,
            node_counters=node,
            selection=SourceSelection(node=tuple(counter.key for counter in node), added_parts=self._adds),
        )

    def die(self) -> None:
        """End the agent as kill -9 does."""
        self._open.close()

    def kill(self) -> None:
        """End the agent as kill -9 does, and start another one."""
        self.die()
        self.manager = self.start()

    def begin(self, job_id: int, cpus: int | None, gpus: str = "", *, exclusive: bool = False) -> None:
        """Announce the begin of a job to the job manager of the node.

        The control group of the job is created later, with the first CPU time that the test gives to the
        job.
        """
        self.manager.begin(self.env(job_id, cpus, gpus, exclusive=exclusive))

    def end(self, job_id: int) -> None:
        """End a job on the emulated node and remove its control group."""
        (self.tree.root / _GROUP.format(job_id)).unlink(missing_ok=True)
        self.manager.end(self.env(job_id, None))

    def env(
        self, job_id: int, cpus: int | None, gpus: str = "", *, exclusive: bool = False
    ) -> dict[str, str]:
        found = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": "1001",
            "SLURM_NODELIST": "n1",
            "SLURMD_NODENAME": "n1",
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_JOB_GPUS": gpus,
            "SLURM_JOB_EXCLUSIVE": "node" if exclusive else "no",
        }
        return found if cpus is None else {**found, "SLURM_JOB_CPUS_PER_NODE": str(cpus)}

    def use(
        self,
        seconds: float,
        watts: Mapping[str, float],
        busy: Mapping[int, float] | None = None,
        system: float = 0.0,
        *,
        ticks: bool = True,
    ) -> None:
        """Let time pass on the emulated node, second by second.

        Args:
            seconds: how long, in seconds.
            watts: power by component; the node meter shows the sum of the components that it includes.
            busy: number of CPUs that each job keeps busy.
            system: number of CPUs that processes of no job keep busy.
            ticks: whether the agent takes its periodic samples.
        """
        while seconds > 0:
            part = min(1.0, seconds)
            self.clock.now += part
            for name, power in watts.items():
                self.move(name, round(power * part * 1e6))
            self.work(
                {job: Fraction(cpus * part) for job, cpus in (busy or {}).items()}, Fraction(system * part)
            )
            if ticks:
                self.manager.sample()
            seconds -= part

    def move(self, component: str, energy_uj: int) -> None:
        """Let a component use an energy: increase the counter of the component.

        If the node meter includes the component, the node meter is increased, too.
        """
        if component != "other":
            self.counters[component].value_uj += energy_uj
        if "node" in self.counters and component.partition("[")[0] not in self._adds:
            self.counters["node"].value_uj += energy_uj

    def work(self, busy_s: Mapping[int, Fraction], system_s: Fraction = Fraction(0)) -> None:
        """Let jobs and the system use CPU time on the node.

        Args:
            busy_s: CPU seconds that each job uses, by job id.
            system_s: CPU seconds that the system uses.
        """
        for job, seconds in busy_s.items():
            self._used_s[job] = self._used_s.get(job, Fraction(0)) + seconds
            text = f"usage_usec {int(self._used_s[job] * 10**6)}\nuser_usec 0\n"
            self.tree.put(_GROUP.format(job), text)
        self._busy_s += sum(busy_s.values(), system_s)
        self._write_stat()

    def _write_stat(self) -> None:
        self.tree.put("proc/stat", f"cpu  {int(self._busy_s * _TICKS_PER_S)} 0 0 0 0 0 0 0 0 0\n")

    def records(self) -> dict[int, EnergyRecord]:
        """Return the records of all ended jobs, by job id. Records of steps are left out."""
        return {record.job_id: record for record in self.all_records() if record.step is None}

    def all_records(self) -> list[EnergyRecord]:
        self.manager.finalize_jobs()
        return [EnergyRecord.from_json(item.record) for item in self.manager.spool.items(10**9, 10_000)]

    def accounts(self) -> dict[str, dict[str, int]]:
        found: dict[str, Any] = self.manager.status()["energy_accounts"]
        return found


def joules(record: EnergyRecord) -> dict[str, float | None]:
    """Return the energy in joules of each component in an energy record."""
    return {part.name: part.energy_joules for part in record.components}


def quality(record: EnergyRecord) -> dict[str, str]:
    """Return the quality mark of each component's energy in a record."""
    return {part.name: str(part.quality) for part in record.components}
