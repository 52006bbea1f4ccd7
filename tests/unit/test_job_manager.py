"""Tests of the job manager, from the begin of a job to its energy record.

The tests include faults, such as a missing epilog, a full disk and the death of the agent.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hardware_tree import KERNEL_RANGE_UJ, Tree
from test_sampler import HandClock, decode

from slurm_energy import atomic_file
from slurm_energy import config as configuration
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.state import state_directory
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import AgentConfig, Config, DefaultsConfig
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import discover
from slurm_energy.errors import (
    AlreadyRunningError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from slurm_energy.policies import WAITING_FOR_CPUS
from slurm_energy.records import EnergyRecord

PACKAGES = {"package-0": "intel-rapl:1", "package-1": "intel-rapl:0"}
DRAM = {"package-0": "intel-rapl:1:1", "package-1": "intel-rapl:0:0"}


class Node:
    """An emulated node for tests: plain files, a job manager and a clock that the test sets."""

    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.folder = folder
        self.tree = Tree(folder / "node").cpus(4).cpufreq(4, "intel_pstate", "powersave").two_packages()
        self.original = self.tree.snapshot()
        self.clock = HandClock()
        self.config = config or Config(agent=AgentConfig(sampling_hz=1.0))
        self._open = contextlib.ExitStack()
        self.writes = 0
        self.manager = self.start()

    def start(self) -> JobManager:
        devices, self.state = discover(self.tree.root), StateDirectory(self.folder / "state")
        self._open.callback(devices.close)
        self._open.callback(self.state.close)
        manager = JobManager(self.config, devices, self.state, self.clock, self._count_write)
        manager.start()
        return manager

    def _count_write(self) -> None:
        self.writes += 1

    def die(self) -> None:
        """Simulate a kill -9 of the agent: only the agent's files remain."""
        self._open.close()

    def stop(self) -> None:
        self.manager.stop()
        self._open.pop_all()

    def use(self, seconds: float, cpu_watts: float = 200.0, max_dram_watts: float = 20.0) -> None:
        """Let time pass on the simulated node while its packages and memory draw a given power.

        A sample is taken every second.

        Args:
            seconds: time that passes.
            cpu_watts: power of each CPU package.
            max_dram_watts: power of the memory of each package.
        """
        while seconds > 0:
            part = min(1.0, seconds)
            self.clock.now += part
            for zone in PACKAGES.values():
                self._count(zone, cpu_watts * part)
            for zone in DRAM.values():
                self._count(zone, max_dram_watts * part)
            self.manager.sample()
            seconds -= part

    def _count(self, zone: str, joules: float) -> None:
        path = f"sys/class/powercap/{zone}/energy_uj"
        value = (int(self.tree.get(path)) + round(joules * 1e6)) % (KERNEL_RANGE_UJ + 61)
        self.tree.put(path, value)

    def items(self) -> list[Any]:
        self.manager.finalize_jobs()
        return self.manager.spool.items(10**9, 1000)

    def records(self) -> list[EnergyRecord]:
        return [EnergyRecord.from_json(item.record) for item in self.items()]


def env(job_id: int = 5, *, cpus: str = "4", restart: int = 0, **flags: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_UID": "1001",
        "SLURM_JOB_USER": "alice",
        "SLURM_JOB_PARTITION": "cpu",
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_NODELIST": "n1",
        "SLURMD_NODENAME": "n1",
        "SLURM_CLUSTER_NAME": "lab",
        "SLURM_JOB_RESTART_COUNT": str(restart),
        **{f"SPANK_ENERGY_{name.upper()}": value for name, value in flags.items()},
    }


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Return a function that creates the emulated test node, with an optional configuration."""
    with contextlib.ExitStack() as stack:

        def node(*config: Config) -> Node:
            made = Node(tmp_path, *config)
            stack.callback(made.die)
            return made

        yield node


@pytest.fixture
def node(make: Callable[..., Node]) -> Node:
    return make()


def energy_of(record: EnergyRecord) -> dict[str, float | None]:
    return {part.name: part.energy_joules for part in record.components}


def test_a_job_from_begin_to_record(node: Node) -> None:
    answer = node.manager.begin(env(policy="powersave", tag="t/1"))
    assert answer == {"policy": "powersave", "applied": 12, "failed": 0}
    assert node.tree.policy(3, "scaling_max_freq") == "800000"
    node.use(10)
    assert node.manager.end(env()) == {"known": True}
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert energy_of(record) == {"dram": 400.0, "cpu": 4000.0}
    assert (record.node, record.cluster, record.job_id, record.user, record.policy) == (
        "n1",
        "lab",
        5,
        "alice",
        "powersave",
    )
    assert (record.elapsed_s, record.mean_watts, record.peak_watts) == (10.0, 440.0, 440.0)
    assert (record.uncertain_seconds, record.seconds_above_cap, record.throttled_seconds) == (0.0, None, None)
    assert record.requested == {"policy": "powersave", "tag": "t/1"}
    assert record.tag == "t/1"
    assert [(device.name, device.max_cap_watts) for device in record.devices] == [("cpu", None)]
    assert record.devices[0].product == discover(node.tree.root).hardware.cpu_model
    applied = {setting.setting: setting for setting in record.applied}
    frequency = applied["cpufreq.frequency[policy0-3]"]
    assert (frequency.original, frequency.applied) == ("800-3400 MHz", "800-800 MHz")
    assert all(setting.restored for setting in record.applied)


def test_the_trace_has_a_value_per_second_and_component(node: Node) -> None:
    node.manager.begin(env())
    node.use(3, cpu_watts=100)
    node.use(2, cpu_watts=50)
    node.manager.end(env())
    trace = node.items()[0].trace
    assert trace["interval_s"] == 1.0
    assert decode(trace["columns"]["cpu"]) == [200.0, 200.0, 200.0, 100.0, 100.0]
    assert decode(trace["columns"]["dram"]) == [40.0] * 5


def test_energy_outside_the_job_is_not_the_job_s(node: Node) -> None:
    node.use(5)
    node.manager.begin(env())
    node.use(1)
    node.manager.end(env())
    node.use(5)
    assert energy_of(node.records()[0])["cpu"] == 400.0


@pytest.mark.slow
def test_hours_with_many_wraps_are_exact(node: Node) -> None:
    node.manager.begin(env())
    node.use(3000, cpu_watts=240)  # 720 kJ per package over a range of 262 kJ
    node.manager.end(env())
    (record,) = node.records()
    assert energy_of(record)["cpu"] == 2 * 3000 * 240.0
    assert record.uncertain_seconds == 0.0


def test_begin_is_idempotent_and_a_requeued_job_begins_again(node: Node) -> None:
    first = node.manager.begin(env(policy="performance"))
    node.use(2)
    assert node.manager.begin(env(policy="performance")) == first
    node.use(2)
    node.manager.begin(env(restart=1))
    assert node.tree.snapshot() == node.original
    node.use(1)
    node.manager.end(env(restart=1))
    old, new = sorted(node.records(), key=lambda record: record.restart_count)
    assert (old.restart_count, old.elapsed_s, energy_of(old)["cpu"]) == (0, 4.0, 1600.0)
    assert "no epilog ran" in old.notes[-1]
    assert (new.restart_count, new.elapsed_s) == (1, 1.0)


def test_a_late_epilog_of_an_earlier_run_does_not_end_the_requeued_run(node: Node) -> None:
    node.manager.begin(env(restart=1))
    assert node.manager.end(env(restart=0)) == {"known": False}
    assert node.manager.active
    epilog = env()
    del epilog["SLURM_JOB_RESTART_COUNT"]  # unknown to slurmd without the job's credential
    assert node.manager.end(epilog) == {"known": True}
    assert not node.manager.active


def test_the_epilog_of_a_requeued_run_ends_it_although_it_states_the_next_restart_count(node: Node) -> None:
    node.manager.begin(env(policy="powersave"))
    node.use(2)
    assert node.manager.end(env(restart=1)) == {"known": True}
    assert node.tree.snapshot() == node.original
    node.manager.begin(env(restart=1))
    node.use(1)
    node.manager.end(env(restart=1))
    records = sorted(node.records(), key=lambda record: record.restart_count)
    assert [(record.restart_count, record.elapsed_s) for record in records] == [(0, 2.0), (1, 1.0)]
    assert not any("no epilog ran" in note for record in records for note in record.notes)


def test_a_job_that_runs_again_under_its_name_keeps_its_files_when_the_earlier_run_is_recorded(
    node: Node,
) -> None:
    """Without a restart count from Slurm, both runs of a requeued job have the same name."""
    node.manager.begin(env())
    node.use(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.manager.spool, "add", full)
        node.manager.end(env())
        node.manager.finalize_jobs()
    node.manager.begin(env())
    node.use(3)
    node.manager.flushed(node.manager.finalize_jobs())
    node.die()
    node.manager = node.start()
    node.use(1)
    node.manager.end(env())
    assert sorted(record.elapsed_s for record in node.records()) == [2.0, 4.0]


def full(*_arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_unknown_job_ends_without_error(node: Node) -> None:
    assert node.manager.end(env(99)) == {"known": False}
    assert node.records() == []


def test_a_lost_epilog_is_repaired_by_the_next_prolog(node: Node) -> None:
    node.manager.begin(env(5, policy="powersave"))
    node.use(3)
    node.manager.begin(env(6))
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert (record.job_id, record.elapsed_s) == (5, 3.0)
    assert "no epilog ran" in record.notes[0]


def test_a_lost_epilog_on_a_shared_node_is_not_waited_for_for_ever(node: Node) -> None:
    node.manager.begin(env(5, cpus="2"))
    node.manager.begin(env(6, cpus="2"))
    for job_id in (5, 6):
        node.manager.step("start", job_id, "batch")
        node.manager.step("start", job_id, "0")
    node.manager.step("end", 5, "batch")
    node.manager.step("end", 6, "0")
    node.clock.now += 590
    node.manager.housekeeping()
    assert len(node.manager.status()["jobs"]) == 2
    node.clock.now += 20
    node.manager.housekeeping()
    assert [job["job_id"] for job in node.manager.status()["jobs"] if job["phase"] == "open"] == [6]
    record = next(record for record in node.records() if record.step is None)
    assert (record.job_id, "no epilog ran within 10 minutes" in record.notes[-1]) == (5, True)
    assert node.manager.end(env(5)) == {"known": False}


@pytest.mark.parametrize("seen", [True, False])
def test_the_end_of_a_batch_step_s_process_ends_the_job(node: Node, seen: bool) -> None:
    node.manager.begin(env(5, cpus="2"))
    node.manager.step("start", 5, "batch", pid=77)
    title = node.tree.root / "proc/77/cmdline"
    if seen:
        title.parent.mkdir(parents=True)
        title.write_bytes(b"slurmstepd: [5.batch]\0")
        node.tree.process_ids(77)
        node.manager.housekeeping()
        title.unlink()
    for _ in range(62):
        node.clock.now += 10
        node.manager.housekeeping()
    running = [job["job_id"] for job in node.manager.status()["jobs"] if job["phase"] == "open"]
    assert running == ([] if seen else [5])


def test_a_cap_is_applied_watched_and_lifted(node: Node) -> None:
    node.manager.begin(env(cap="300"))
    limit = "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"
    assert node.tree.get(limit) == "150000000"
    assert node.tree.get("sys/class/powercap/intel-rapl:0/enabled") == "1"
    node.use(4, cpu_watts=170)  # 380 W with memory
    node.use(3, cpu_watts=125)  # 290 W
    node.manager.end(env())
    (record,) = node.records()
    assert node.tree.snapshot() == node.original
    assert (record.policy, record.seconds_above_cap, record.peak_watts) == ("cap", 4.0, 380.0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"cap": "20"}, "--energy-cap: '20' is out of bounds"),
        ({"policy": "../../etc"}, "--energy-policy: '../../etc' is not known"),
        ({"cap": "1e999"}, "'1e999' is not a power"),
        ({"tag": "x" * 60000}, "--energy-tag"),
    ],
)
def test_unchecked_flags_never_stop_a_job(node: Node, flags: dict[str, str], words: str) -> None:
    assert node.manager.begin(env(**flags)) == {"policy": "monitor", "applied": 0, "failed": 0}
    node.manager.end(env())
    (record,) = node.records()
    assert words in record.notes[0]
    assert "ran under 'monitor'" in record.notes[0]


def test_the_default_policy_is_the_site_s(make: Callable[..., Node]) -> None:
    node = make(Config(defaults=DefaultsConfig(partition={"cpu": "powersave"})))
    assert node.manager.begin(env())["policy"] == "powersave"
    node.manager.end(env())
    assert node.records()[0].requested == {}


def test_a_job_that_shares_the_node_is_charged_a_part_and_changes_no_cpu_setting(node: Node) -> None:
    node.manager.begin(env(5, cpus="1", policy="powersave"))
    node.manager.begin(env(6, cpus="2"))
    assert node.tree.snapshot() == node.original
    node.use(9)
    node.manager.end(env(5, cpus="1"))
    node.manager.end(env(6, cpus="2"))
    by_job = {record.job_id: record for record in node.records()}
    # Their CPU time is unknown.
    assert energy_of(by_job[5]) == pytest.approx({"dram": 120.0, "cpu": 1200.0})
    assert energy_of(by_job[6]) == pytest.approx({"dram": 240.0, "cpu": 2400.0})
    assert {part.quality for part in by_job[5].components} == {"modelled"}
    assert any(WAITING_FOR_CPUS in note for note in by_job[5].notes)


def test_a_job_of_unknown_size_has_unknown_energy(node: Node) -> None:
    unknown = {name: value for name, value in env().items() if name != "SLURM_JOB_CPUS_PER_NODE"}
    node.manager.begin(unknown)
    node.use(2)
    node.manager.end(unknown)
    (record,) = node.records()
    assert energy_of(record) == {"dram": None, "cpu": None}
    assert (record.energy_joules, record.mean_watts, record.peak_watts) == (None, None, None)


def test_steps_have_records_of_their_own(node: Node) -> None:
    node.manager.begin(env())
    node.manager.step("start", 5, "batch")
    node.use(1)
    node.manager.step("start", 5, "0")
    node.use(2)
    node.manager.step("end", 5, "0")
    node.use(1)
    node.manager.step("end", 5, "batch")
    node.use(1)
    node.manager.end(env())
    energy = {record.step: energy_of(record)["cpu"] for record in node.records()}
    assert energy == {"batch": 800.0, "0": 800.0, None: 2000.0}
    assert {part.quality for record in node.records() for part in record.components} == {"measured"}


def test_concurrent_steps_are_partial_and_lost_ends_are_noted(node: Node) -> None:
    node.manager.begin(env())
    node.manager.step("start", 5, "0")
    node.manager.step("start", 5, "1")
    node.use(2)
    node.manager.end(env())
    steps = [record for record in node.records() if record.step]
    assert {part.quality for record in steps for part in record.components} == {"partial"}
    assert all("the end of the step was not reported" in record.notes for record in steps)


def test_steps_of_jobs_that_are_not_here_are_unknown(node: Node) -> None:
    assert node.manager.step("start", 77, "0") == {"known": False}
    assert node.manager.step("end", 77, "0") == {"known": False}


def test_caps_of_a_running_job_can_be_changed_and_lifted(node: Node) -> None:
    node.manager.begin(env())
    limit = "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"
    assert node.manager.set_caps(5, {"cap_watts": 320.0}) == {"applied": 6, "failed": 0}
    assert node.tree.get(limit) == "160000000"
    node.manager.set_caps(5, {"cap_watts": 400.0})
    assert node.tree.get(limit) == "200000000"
    node.manager.set_caps(5, {"cap_watts": None})
    assert node.tree.snapshot() == node.original
    node.manager.set_caps(5, {"cap_watts": 350.0})
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert next(note for note in record.notes if "caps changed" in note).endswith("node 320 W")
    assert {s.original for s in record.applied if "power_limit" in s.setting} == {"250 W"}
    with pytest.raises(NotFoundError):
        node.manager.set_caps(5, {"cap_watts": 100.0})


def test_fixed_settings_stay_when_caps_change_and_after_a_restart(node: Node) -> None:
    frequency = "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
    original = node.tree.get(frequency)
    node.manager.begin(env(cpu_freq="1.5GHz", tag="x"))
    assert node.tree.get(frequency) == "1500000" != original
    node.manager.set_caps(5, {"cap_watts": 320.0})
    assert node.tree.get(frequency) == "1500000"
    node.die()
    node.manager = node.start()
    node.manager.set_caps(5, {"cap_watts": None})
    assert node.tree.get(frequency) == "1500000"
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert (record.policy, record.requested) == ("cap", {"cpu_freq": "1.5GHz", "tag": "x"})


def test_monitor_with_a_fixed_setting_changes_nothing_and_says_why(node: Node) -> None:
    """Check that policy `monitor` changes no setting and that the record states the reason.

    Clients without the plugin's check of flags can combine `monitor` with a fixed setting.
    """
    node.manager.begin(env(policy="monitor", cpu_freq="1500", slowdown="5", power_profile="MAX_Q"))
    assert node.tree.snapshot() == node.original
    node.manager.end(env())
    (record,) = node.records()
    assert record.policy == "monitor" and "'monitor' changes nothing" in record.notes[0]


def test_energy_of_a_running_job(node: Node) -> None:
    node.manager.begin(env())
    node.use(3)
    uid, found = node.manager.energy(5)
    assert found["sampled_s"] == node.clock.now
    assert (uid, {name: value for name, value in found.items() if name != "sampled_s"}) == (
        1001,
        {"components": {"dram": 120.0, "cpu": 1200.0}, "watts": 440.0, "elapsed_s": 3.0, "age_s": 0.0},
    )
    with pytest.raises(NotFoundError):
        node.manager.energy(6)
    assert node.manager.energy(5, reader=1001) == (uid, found)
    with pytest.raises(ForbiddenError):
        node.manager.energy(5, reader=1002)


def test_observation_of_a_running_job_is_for_its_owner_and_at_a_limited_rate(node: Node) -> None:
    node.manager.begin(env())
    queries = node.manager.queries
    answer = queries.observation(5, 1001)
    assert set(answer) == {"node", "observation", "trace"} and answer["observation"] is None
    with pytest.raises(ForbiddenError):
        queries.observation(5, 1002)
    with pytest.raises(NotFoundError):
        queries.observation(6, 1001)
    for _ in range(9):
        queries.observation(5, 1001)
    with pytest.raises(UnavailableError, match="too many requests"):
        queries.observation(5, 1001)
    assert queries.observation(5, None)["node"] == answer["node"]  # root has no limit


def test_a_sample_is_as_fresh_as_requested_within_the_user_s_rate_limit(node: Node) -> None:
    node.manager.begin(env())
    node.use(1)
    node.clock.now += 0.05
    assert node.manager.energy(5, reader=1001)[1]["age_s"] == pytest.approx(0.05)
    assert node.manager.energy(5, reader=1001, fresh=True)[1]["age_s"] == 0.0
    for _ in range(500):
        node.manager.energy(5, reader=1001, fresh=True)
    node.clock.now += 0.002
    assert node.manager.energy(5, reader=1001, fresh=True)[1]["age_s"] == pytest.approx(0.002)
    node.clock.now += 1
    node.manager.sample()
    node.clock.now += 0.002
    assert node.manager.energy(5, reader=1001, fresh=True)[1]["age_s"] == 0.0


def test_status_has_the_power_of_the_node_and_of_own_jobs(node: Node) -> None:
    node.manager.begin(env())
    node.use(2)
    status = node.manager.status(reader=1002)
    assert status["watts"] == {"cpu": 400.0, "dram": 40.0}
    assert status["watts_window_s"] == 1.0
    assert set(status["jobs"][0]) == {"job_id", "restart_count", "policy", "phase"}
    (own,) = node.manager.status(reader=1001)["jobs"]
    assert (own["user"], own["elapsed_s"]) == ("alice", 2.0)
    assert own["watts"] == {"cpu": 400.0, "dram": 40.0}
    assert own["energy_joules"] == {"cpu": 800.0, "dram": 80.0}


def test_status_samples_a_node_without_jobs(node: Node) -> None:
    assert node.manager.status()["watts"] == {"cpu": None, "dram": None}
    for zone in PACKAGES.values():
        node._count(zone, 100.0)
    node.clock.now += 2
    assert node.manager.status()["watts"] == {"cpu": 100.0, "dram": 0.0}
    node.clock.now += 100
    assert node.manager.status()["watts"] == {"cpu": None, "dram": None}


def test_what_cannot_be_read_is_unknown_power(node: Node) -> None:
    node.manager.begin(env())
    node.tree.put("sys/class/powercap/intel-rapl:1/energy_uj", "x")
    node.use(0, 0)
    node.clock.now += 1
    node.manager.sample()
    assert node.manager.status()["watts"] == {"cpu": None, "dram": 0.0}


def test_status_has_running_jobs_and_devices(node: Node) -> None:
    node.manager.begin(env(policy="performance"))
    status = node.manager.status()
    assert status["node"] == "n1"
    job = {"job_id": 5, "restart_count": 0, "policy": "performance", "phase": "open"}
    assert job.items() <= status["jobs"][0].items()
    assert status["devices"]["knobs"]["cpufreq.governor"] == 4
    assert "powercap:package-0" in status["devices"]["counters"]
    assert status["spooled"] == 0


def test_the_job_continues_after_the_agent_was_killed(node: Node) -> None:
    node.manager.begin(env(policy="powersave"))
    node.use(5)
    node.manager.housekeeping()
    node.use(3)
    node.die()
    node.clock.now += 7
    for zone in PACKAGES.values():
        node._count(zone, 100.0 * 7)
    node.manager = node.start()
    assert node.tree.policy(0, "scaling_max_freq") == "800000"  # the job still runs
    node.use(2)
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert record.elapsed_s == 17.0
    assert energy_of(record)["cpu"] == pytest.approx(2 * (200 * 8 + 100 * 7 + 200 * 2))
    assert record.uncertain_seconds == 0.0
    assert "senergyd was restarted while the job ran" in record.notes
    watts = decode(node.items()[0].trace["columns"]["cpu"])
    assert len(watts) == 17
    assert sum(watts) == pytest.approx(energy_of(record)["cpu"], rel=1e-3)


def test_a_gap_longer_than_a_wrap_is_uncertain(node: Node) -> None:
    node.manager.begin(env())
    node.use(5)
    node.manager.housekeeping()
    node.die()
    node.clock.now += 3600
    node.manager = node.start()
    node.manager.end(env())
    assert node.records()[0].uncertain_seconds == pytest.approx(3600)


def test_after_a_reboot_the_record_ends_at_the_last_checkpoint(node: Node) -> None:
    node.manager.begin(env(policy="powersave"))
    node.use(5)
    node.manager.housekeeping()
    node.die()
    node.clock.now, node.clock.boot_id = 12.0, "another boot"
    node.manager = node.start()
    (record,) = node.records()
    assert (record.elapsed_s, energy_of(record)["cpu"]) == (5.0, 2000.0)
    assert "the node was restarted" in record.notes[-1]
    assert node.tree.snapshot() == node.original


def test_a_record_has_settings_restored_outside_the_agent(node: Node) -> None:
    node.manager.begin(env(policy="powersave"))
    node.use(2)
    node.die()
    devices, state = discover(node.tree.root), StateDirectory(node.folder / "state")
    SettingsManager(devices, state.journal).repair(running=())  # senergyd --restore
    state.close()
    devices.close()
    assert node.tree.snapshot() == node.original
    node.manager = node.start()
    assert node.tree.snapshot() == node.original
    node.manager.end(env())
    assert {setting.restored for setting in node.records()[0].applied} == {True}


def test_settings_of_a_lost_session_are_restored_at_start(node: Node) -> None:
    node.manager.begin(env(policy="powersave"))
    node.die()
    for file in (node.folder / "state/sessions").iterdir():
        file.unlink()
    node.manager = node.start()
    assert node.tree.snapshot() == node.original


class PowerError(Exception):
    """Exception that simulates a kill -9 of the agent at a chosen write."""


@pytest.mark.parametrize("point", range(16))
def test_death_at_any_write_of_the_agent_s_files(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    """After the agent's death at any of its writes, its files are sufficient to finish its work.

    From the files, a new agent can restore all settings and write exactly one record. The agent is killed at
    the write with the number `point`.
    """
    node = make()
    count = 0

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count > point:
                raise PowerError
            return write(*arguments, **options)

        return replacement

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "write", dying(atomic_file.write))
        try:
            node.manager.begin(env(policy="powersave", cap="300"))
            node.use(3)
            node.manager.housekeeping()
            node.manager.step("start", 5, "batch")
            node.manager.end(env())
            node.manager.finalize_jobs()
        except PowerError:
            pass
    node.die()
    node.manager = node.start()
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    assert not (tmp_path / "state/journal.json").exists()
    jobs = [record for record in node.records() if record.step is None]
    assert len(jobs) == (1 if point > 0 else 0)


def test_a_full_disk_keeps_the_job_until_the_record_fits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.manager.begin(env(policy="powersave"))
    node.use(2)

    def full(path: Path, *_arguments: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "write", full)
        patch.setattr(Path, "write_bytes", full)
        assert node.manager.end(env()) == {"known": True}
        assert node.records() == []
        assert node.manager.status()["jobs"][0]["phase"] == "closing"
    writes = node.writes
    node.manager.housekeeping()
    assert node.writes > writes
    (record,) = node.records()
    assert record.elapsed_s == 2.0
    assert node.tree.snapshot() == node.original


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_step_of_the_wall_clock_moves_nothing_of_a_job(node: Node, step_s: float) -> None:
    node.manager.begin(env())
    began = node.clock.unix()
    node.use(5)
    node.clock.wall_step = step_s
    node.use(5)
    node.manager.housekeeping()
    node.die()
    node.manager = node.start()
    node.use(5)
    node.manager.end(env())
    (item,) = node.items()
    record = EnergyRecord.from_json(item.record)
    assert (record.start, record.end) == (began, began + 15.0)
    assert record.elapsed_s == 15.0
    assert energy_of(record) == {"dram": 600.0, "cpu": 6000.0}
    assert item.trace["start"] == began
    assert decode(item.trace["columns"]["cpu"]) == [400.0] * 15


@pytest.mark.slow
def test_the_spool_drops_traces_before_records(node: Node) -> None:
    for job_id in range(1, 41):
        node.manager.begin(env(job_id))
        node.use(40)
        node.manager.end(env(job_id))
    full = len(node.items())
    assert all(item.trace for item in node.items())
    size = sum(path.stat().st_size for path in (node.folder / "state/spool").iterdir())
    node.manager.spool.limit_bytes = size
    for job_id in range(41, 44):
        node.manager.begin(env(job_id))
        node.use(2)
        node.manager.end(env(job_id))
    items = node.items()
    assert len(items) == full + 3
    assert items[0].trace is None
    assert items[-1].trace


def test_a_record_that_is_not_json_does_not_block_the_others(node: Node) -> None:
    node.manager.begin(env())
    node.manager.end(env())
    node.die()
    (node.folder / "state/spool/000000000001-abc.json").write_text("{")
    node.manager = node.start()
    assert len(node.items()) == 1
    assert node.manager.spool.count() == 1
    assert (node.folder / "state/spool/rejected/000000000001-abc.json").exists()


def test_damaged_state_files_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_directory, "_MAX_DAMAGED", 3)
    node.die()
    sessions = node.folder / "state/sessions"
    for number in range(10):
        (sessions / f"{number}.0.json").write_text("{")
    node.manager = node.start()
    assert len(list(sessions.iterdir())) == 3


def test_a_damaged_state_file_is_kept_aside_and_costs_no_other_job(node: Node) -> None:
    node.manager.begin(env(4))
    node.die()
    (node.folder / "state/sessions/5.0.json").write_text(json.dumps({"version": 1, "session": {}}))
    node.manager = node.start()
    assert [path.name for path in (node.folder / "state/sessions").glob("5*")] == ["5.0.json.damaged"]
    assert node.manager.end(env(4))["known"]
    assert len(node.records()) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"steps": []}, {"meter": "x"}, {"plan": [1]}, {"notes": None}, {"job_id": []}, {"restart_count": None}],
)
def test_values_of_wrong_types_in_a_state_file_do_not_stop_the_start(
    node: Node, wrong: dict[str, Any]
) -> None:
    for job_id in (4, 5):
        node.manager.begin(env(job_id, cpus="1"))
    node.die()
    path = node.folder / "state/sessions/5.0.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "session": data["session"] | wrong}))
    node.manager = node.start()
    assert [path.name for path in (node.folder / "state/sessions").glob("5*")] == ["5.0.json.damaged"]
    assert node.manager.end(env(4, cpus="1"))["known"]


def test_one_agent_per_state_directory(node: Node) -> None:
    with pytest.raises(AlreadyRunningError, match="stop that one first"):
        StateDirectory(node.folder / "state")


def test_a_state_directory_that_others_could_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(ForbiddenError):
            StateDirectory(tmp_path / name)


def test_a_hook_without_a_job_is_refused(node: Node) -> None:
    with pytest.raises(UsageError):
        node.manager.begin({"SLURM_CLUSTER_NAME": "x"})


def test_a_new_configuration_counts_from_the_next_job_on(node: Node) -> None:
    node.manager.begin(env(5, policy="powersave"))
    text = '[bounds]\ncap_watts = [200, 210]\n[defaults]\npolicy = "performance"\n'
    node.manager.reconfigure(configuration.parse(text))
    assert node.tree.policy(0, "scaling_max_freq") == "800000"
    node.manager.end(env(5))
    assert node.manager.begin(env(6))["policy"] == "performance"


def test_stopping_leaves_the_settings_of_running_jobs(node: Node) -> None:
    node.manager.begin(env(policy="powersave"))
    node.use(3)
    node.stop()
    assert node.tree.policy(0, "scaling_max_freq") == "800000"
    node.manager = node.start()
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    assert energy_of(node.records()[0])["cpu"] == 1200.0


def test_caps_that_change_without_end_leave_a_record_of_bounded_length(node: Node) -> None:
    node.manager.begin(env())
    for watts in range(400, 700):
        node.manager.set_caps(5, {"cap_watts": float(watts)})
    node.manager.end(env())
    (record,) = node.records()
    assert len(record.notes) <= 101
    assert record.notes[-1] == "further remarks are left out"


@pytest.mark.parametrize(
    ("accounts", "logged"),
    [
        ({}, False),  # without a sequence number they are older than those of the session's file
        ([], False),
        ({"sequence": 7}, True),
        ({"sequence": 7, "ledger": {"accounts": {"cpu": {"x": 1}}}}, True),
    ],
)
def test_accounts_that_cannot_be_read_do_not_keep_the_agent_from_starting(
    make: Callable[..., Node], tmp_path: Path, caplog: pytest.LogCaptureFixture, accounts: Any, logged: bool
) -> None:
    node = make()
    node.manager.begin(env(policy="powersave"))
    node.use(5)
    file = tmp_path / "state/accounts.json"
    file.write_text(json.dumps({"version": 1, "checkpoint": accounts}))
    file.chmod(0o600)
    node.die()
    node.manager = node.start()
    assert ("energy accounts of an earlier run" in caplog.text) is logged
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    assert len(node.records()) == 1
