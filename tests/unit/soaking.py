"""Soak test of an agent on an emulated node, where a day passes in about a minute.

The node has files with counters and CPU times. Several jobs share the node.
"""

from __future__ import annotations

import gc
import os
import random
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from hardware_tree import KERNEL_RANGE_UJ, Tree
from test_sampler import HandClock

from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import AgentConfig, Config
from slurm_energy.devices.discovery import discover

CPUS = 8
HOUR_S = 3600
_ZONES = {"intel-rapl:0": 150.0, "intel-rapl:1": 140.0, "intel-rapl:0:0": 20.0, "intel-rapl:1:1": 18.0}
_RANGE_UJ = KERNEL_RANGE_UJ + 61
_GROUP = "sys/fs/cgroup/system.slice/n1_slurmstepd.scope/job_{}/cpu.stat"
_HOUSEKEEPING_S, _DELIVERY_S = 10, 600
_SHORTEST_S, _LONGEST_S = 20, 110


@dataclass
class SoakResult:
    """The results of a soak test.

    Attributes:
        records, steps: for each job, how often its record was delivered, and how often the record of its
            step was delivered.
        ids: hashes of the records' ids.
        energy_uj: energy by which all counters advanced.
        measured_uj: measured energy in the node's energy accounts.
        charged_uj: energy that was assigned: to jobs, to idle energy or to unattributed energy.
        memory_bytes: resident memory after each hour.
        descriptors: open file descriptors after each hour, without those of running jobs' control groups.
    """

    records: array[int]
    steps: array[int]
    ids: array[int]
    energy_uj: int = 0
    measured_uj: int = 0
    charged_uj: int = 0
    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether there is one record of every job, and one of every step."""
        one_each = bytes([0]) + bytes([1]) * (len(self.records) - 1)
        return self.records.tobytes() == self.steps.tobytes() == one_each and len(set(self.ids)) == len(
            self.ids
        )

    @property
    def growth_bytes(self) -> int:
        """Growth of the resident memory after the first hour, in bytes.

        The value is the maximum of the hourly values after the first one, minus the first one.
        """
        return max(self.memory_bytes[1:]) - self.memory_bytes[0]


class Number:
    """A file that holds one number in a fixed width and is rewritten in place.

    Rewriting in place is cheap, so that the file's cost does not outweigh the tested code. The
    class uses plain file names, because pathlib would keep more memory than the agent does.
    """

    def __init__(self, path: str, form: str) -> None:
        self._form = form
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.put(0)

    def put(self, value: int) -> None:
        os.pwrite(self._descriptor, self._form.format(value).encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)


class Soak:
    """Endurance test of senergyd on an emulated node that runs many overlapping jobs.

    The jobs take 20 to 110 seconds of simulated time. A sequence of one-hour jobs runs at the same time.

    Args:
        folder: directory for the files of the node and of the agent. A file system in memory is faster.
        hours: simulated hours.
        jobs: number of jobs.
    """

    def __init__(self, folder: Path, hours: int, jobs: int) -> None:
        self._chance = random.Random(20261121)
        self._tree = Tree(folder / "node").cpus(CPUS).cpufreq(CPUS, "intel_pstate", "powersave")
        self._tree.two_packages()
        self._seconds = hours * HOUR_S
        self._begins = self._plan(jobs)
        self._zones = {
            name: Number(f"{self._tree.root}/sys/class/powercap/{name}/energy_uj", "{:014d}\n")
            for name in _ZONES
        }
        self._counts = dict.fromkeys(_ZONES, 0)
        self._stat = Number(f"{self._tree.root}/proc/stat", "cpu  {:014d} 0 0 0 0 0 0 0 0 0\n")
        self._busy_ns = 0
        self._running: dict[int, tuple[int, Number, float]] = {}
        self._used_ns: dict[int, int] = {}
        self._clock = HandClock()
        self._state = StateDirectory(folder / "state")
        config = Config(agent=AgentConfig(sampling_hz=1.0, idle_watts={"cpu": 120.0, "dram": 20.0}))
        self._manager = JobManager(config, discover(self._tree.root), self._state, self._clock)
        self.found = SoakResult(array("B", bytes(jobs + 1)), array("B", bytes(jobs + 1)), array("q"))

    def run(self) -> SoakResult:
        """Simulate the configured number of hours of an agent, and return the result."""
        self._manager.start()
        for second in range(self._seconds):
            self._change_jobs(second)
            self._work()
            self._manager.sample()
            if second % _HOUSEKEEPING_S == 0:
                self._keep_house(second)
            if second % HOUR_S == HOUR_S - 1:
                self._look()
        for job in list(self._running):
            self._end(job)
        self._deliver()
        accounts = self._manager.status()["energy_accounts"]
        self.found.measured_uj = sum(line["measured"] for line in accounts.values())
        self.found.charged_uj = sum(sum(line.values()) - line["measured"] for line in accounts.values())
        self._manager.stop()
        for number in (*self._zones.values(), self._stat):
            number.close()
        return self.found

    def _plan(self, jobs: int) -> dict[int, list[tuple[int, int]]]:
        """Return which simulated jobs of the soak test begin at each second.

        The result maps a second to the jobs that begin then. Each job is a pair: job id and second of its
        end. The jobs with the lowest ids are long jobs: one begins in each hour and lasts one hour. All other
        jobs are short.
        """
        long = self._seconds // HOUR_S
        begins = {hour * HOUR_S: [(hour + 1, (hour + 1) * HOUR_S)] for hour in range(long)}
        pause = (self._seconds - _LONGEST_S - 1) / (jobs - long)
        for job in range(long + 1, jobs + 1):
            begin = int((job - long - 1) * pause)
            length = self._chance.randint(_SHORTEST_S, _LONGEST_S)
            begins.setdefault(begin, []).append((job, begin + length))
        return begins

    def _change_jobs(self, second: int) -> None:
        for job in [job for job, (end, *_) in self._running.items() if end <= second]:
            self._end(job)
        for job, end in self._begins.get(second, []):
            cpus = 1 if end - second > _LONGEST_S else 2
            policy = {"SPANK_ENERGY_POLICY": "powersave"} if job % 5 == 0 else {}
            self._manager.begin({**_env(job), "SLURM_JOB_CPUS_PER_NODE": str(cpus), **policy})
            group = Number(f"{self._tree.root}/{_GROUP.format(job)}", "usage_usec {:014d}\nuser_usec 0\n")
            self._running[job] = end, group, cpus * self._chance.random()
            self._used_ns[job] = 0
            self._manager.step("start", job, "0")

    def _end(self, job: int) -> None:
        _, group, _ = self._running.pop(job)
        del self._used_ns[job]
        if job % 7:  # the others' steps are ended by the job's end
            self._manager.step("end", job, "0")
        group.close()
        os.unlink(group.path)
        os.rmdir(os.path.dirname(group.path))
        self._manager.end(_env(job))

    def _work(self) -> None:
        self._clock.now += 1.0
        for name, watts in _ZONES.items():
            moved = round(watts * 1e6 * (0.6 + 0.4 * self._chance.random()))
            self.found.energy_uj += moved
            self._counts[name] = (self._counts[name] + moved) % _RANGE_UJ
            self._zones[name].put(self._counts[name])
        for job, (_, group, cpus) in self._running.items():
            self._used_ns[job] += round(cpus * 1e9)
            self._busy_ns += round(cpus * 1e9)
            group.put(self._used_ns[job] // 1000)
        self._busy_ns += 50_000_000
        self._stat.put(self._busy_ns // 10_000_000)

    def _keep_house(self, second: int) -> None:
        self._manager.finalize_jobs()
        self._manager.housekeeping()
        for job in self._running:
            self._manager.energy(job, reader=1001)
        self._manager.status(1001)
        if second % _DELIVERY_S == 0:
            self._deliver()

    def _deliver(self) -> None:
        self._manager.finalize_jobs()
        for item in self._manager.spool.items(10**9, 10_000):
            record = item.record
            (self.found.records if record["step"] is None else self.found.steps)[record["job_id"]] += 1
            self.found.ids.append(hash(item.record_id))
            self._manager.spool.remove(item.name)

    def _look(self) -> None:
        gc.collect()
        self.found.memory_bytes.append(_resident_bytes())
        targets = [_target(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        self.found.descriptors.append(sum("/job_" not in target for target in targets))


def _resident_bytes() -> int:
    """Return the resident memory of this process, read from the page tables.

    The counters in /proc/self/statm may lag by 1 MB.
    """
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Rss in smaps_rollup")


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # the one with which the directory is read
        return ""


def _env(job: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_UID": "1001",
        "SLURM_NODELIST": "n1",
        "SLURMD_NODENAME": "n1",
        "SLURM_CLUSTER_NAME": "lab",
        "SLURM_JOB_EXCLUSIVE": "no",
    }
