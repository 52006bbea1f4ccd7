"""Power saving by senergyctld on a real Slurm whose nodes are switched off and on.

The power supplies of the nodes are emulated: slurm_energy_lab.power_supply measures the true energy.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from own_controller import Controller, reserved_port
from small_cluster import NODES, SEARCH, SmallCluster, marks, wait_until

from slurm_energy.power_saving.rule import PowerSavingRules
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.registry import policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.schedule_settings import PowerSaving, ScheduleSettings
from slurm_energy.simulator.workload import workload
from slurm_energy_lab.power_supply import SupplyModel, delivered_joules, read_changes, write_programs

pytestmark = [*marks(), pytest.mark.soak]

MODEL = SupplyModel(
    idle_watts=150.0,
    busy_watts=350.0,
    off_watts=10.0,
    boot_s=5.0,
    boot_watts=200.0,
    shutdown_s=2.0,
    shutdown_watts=150.0,
)
CYCLE_S = 2.0
SLURM = """\
SuspendProgram={dir}/suspend
ResumeProgram={dir}/resume
SuspendTime={{suspend_time}}
SuspendTimeout=3
ResumeTimeout=40
SuspendRate=0
ResumeRate=0
SlurmctldParameters=power_save_interval=1
{prolog}
"""
JOBS = ((20.0, 20.0, 1), (110.0, 20.0, 2), (115.0, 15.0, 1), (230.0, 15.0, 3), (340.0, 20.0, 1))
"""Submission, run time and nodes of each job, in seconds."""
END_S = 420.0
MIN_IDLE_S = 30.0
SLURM_PASS_S = 30.0
"""slurmctld examines every 30 s (PERIODIC_TIMEOUT) whether all nodes of a job have booted. At the end of a
power-down it waits for SuspendTimeout and its next pass."""
EXPECTED_BOOT_S, EXPECTED_SHUTDOWN_S = 25.0, 10.0
"""Mean times until Slurm can use a node again, passes included."""


PROLOG = Path(__file__).parents[2] / "prolog_epilog" / "prolog_slurmctld"


class PoweredCluster(SmallCluster):
    """Small cluster whose nodes have emulated power supplies; it stops the daemons that Slurm booted."""

    def __init__(self, directory: Path, suspend_time: int = 31536000, *, waits_for_boot: bool = True) -> None:
        hooks = "Prolog={dir}/power-prolog\nEpilog={dir}/power-epilog"
        prolog = "PrologSlurmctld={dir}/prolog-slurmctld" if waits_for_boot else ""
        extra = SLURM.replace("{{suspend_time}}", str(suspend_time)).replace("{prolog}", prolog)
        super().__init__(directory, directory / "none.so", directory / "none", extra, hooks=hooks)

    def _write_files(self) -> None:
        super()._write_files()
        (self.directory / "plugstack.conf").write_text("")
        write_programs(self.directory, self.directory / "slurm.conf", SEARCH, MODEL)
        program = self.directory / "prolog-slurmctld"
        program.write_text(f"#!/bin/sh\nexec {PROLOG} --socket {self.directory}/boot.sock\n")
        program.chmod(0o755)

    def _settle(self) -> None:
        for path in self.directory.glob("slurmd.*.pid"):
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                subprocess.run(["kill", path.read_text().strip()], check=False, capture_output=True)

    def states(self) -> dict[str, str]:
        """Return the state of each node in long form."""
        output = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout
        return {line.split()[0]: line.split()[1] for line in output.splitlines() if line.strip()}

    def submit(self, nodes: int, time_s: float) -> int:
        """Submit a job that sleeps."""
        done = self.run(
            "sbatch",
            *("--parsable", "--output=/dev/null", "--exclusive", f"--nodes={nodes}", "--time=5"),
            *("--wrap", f"sleep {time_s:g}"),
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split(";")[0])


@pytest.fixture
def cluster():
    directory = Path(tempfile.mkdtemp(prefix="senergy-", dir="/var/tmp"))
    try:
        with PoweredCluster(directory) as running:
            yield running
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def controller(cluster, monkeypatch, **settings):
    """Run senergyctld with power saving for the cluster."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    folder = cluster.directory / "controller"
    folder.mkdir(exist_ok=True)
    values = {
        "mode": '"on"',
        "boot_socket": f'"{cluster.directory}/boot.sock"',
        "risk": 0.2,
        "min_idle_s": MIN_IDLE_S,
        "min_on_s": 1.0,
        "cycle_s": CYCLE_S,
        "reserve_percent": 0.0,
        "idle_watts": '{ "n[1-3]" = 150.0 }',
        "off_watts": MODEL.off_watts,
        "boot_s": EXPECTED_BOOT_S,
        "boot_watts": mean_boot_watts(EXPECTED_BOOT_S),
        "shutdown_s": EXPECTED_SHUTDOWN_S,
        "shutdown_watts": mean_shutdown_watts(EXPECTED_SHUTDOWN_S),
    } | settings
    lines = "\n".join(f"{name} = {value}" for name, value in values.items())
    with reserved_port() as port:
        made = Controller(folder, cluster.directory / "munge.socket", port)
        made.configure(f"[power_saving]\n{lines}\n")
        made.start()
        try:
            yield made
        finally:
            made.process.terminate()
            made.process.wait(30)


def mean_boot_watts(boot_s: float) -> float:
    """Return the mean power from the begin of a boot until a job starts: the node is idle after the boot."""
    return (MODEL.boot_s * MODEL.boot_watts + (boot_s - MODEL.boot_s) * MODEL.idle_watts) / boot_s


def mean_shutdown_watts(shutdown_s: float) -> float:
    """Return the mean power from the begin of a shutdown until Slurm can use the node again."""
    off_s = shutdown_s - MODEL.shutdown_s
    return (MODEL.shutdown_s * MODEL.shutdown_watts + off_s * MODEL.off_watts) / shutdown_s


def saving_status(made):
    return made.client().get("/v1/status")["power_saving"]


def test_energy_falls_as_simulated(cluster, monkeypatch):
    """Compare the true energy of all nodes with the simulation of the same jobs."""
    with controller(cluster, monkeypatch) as made:
        start = time.time()
        numbers = []
        for submit_s, time_s, nodes in JOBS:
            time.sleep(max(0.0, start + submit_s - time.time()))
            numbers.append((time.time() - start, cluster.submit(nodes, time_s)))
        time.sleep(max(0.0, start + END_S - time.time()))
        status = saving_status(made)
    end = start + END_S
    changes = read_changes(cluster.directory)
    live = delivered_joules(changes, NODES, MODEL, start, end)
    busy = [busy_spans(cluster, job) for _, job in numbers]
    waits_s = [spans[0] - start - submit for (submit, _), spans in zip(numbers, busy, strict=True)]
    times_s = [spans[1] - spans[0] for spans in busy]
    boot_s = measured_boot_s(changes, [spans[0] for spans in busy])
    on_joules, saved_joules = simulated_joules([submit for submit, _ in numbers], times_s, boot_s)
    extra = sum(t * nodes for t, (_, _, nodes) in zip(times_s, JOBS, strict=True))
    always_on = 3 * END_S * MODEL.idle_watts + extra * (MODEL.busy_watts - MODEL.idle_watts)
    for when, state, node in changes:
        print(f"{when - start:7.1f} {node} {state}")
    print(f"waits {[round(w, 1) for w in waits_s]} s, mean boot {boot_s:.1f} s, learned {status['boot_s']}")
    print(f"always on {always_on:.0f} J (simulated {on_joules:.0f} J)")
    print(f"live {live:.0f} J, simulated {saved_joules:.0f} J, ratio {live / saved_joules:.3f}")
    print(f"reduction live {1 - live / always_on:.3f}, simulated {1 - saved_joules / on_joules:.3f}")
    assert on_joules == pytest.approx(always_on, rel=0.02)
    assert live < 0.8 * always_on
    assert live == pytest.approx(saved_joules, rel=0.08)
    assert max(waits_s) <= MODEL.boot_s + SLURM_PASS_S + EXPECTED_SHUTDOWN_S


def busy_spans(cluster, job: int) -> tuple[float, float]:
    """Return start and end of a job in Unix seconds."""
    output = cluster.run("scontrol", "-o", "show", "job", str(job), SLURM_TIME_FORMAT="%s").stdout
    values = dict(part.split("=", 1) for part in output.split() if "=" in part)
    assert values["JobState"] == "COMPLETED", output
    return float(values["StartTime"]), float(values["EndTime"])


def measured_boot_s(changes, starts) -> float:
    """Return the mean time from the begin of a boot until the job that caused it starts."""
    boots = []
    for start in starts:
        before = [when for when, state, _ in changes if state == "boot" and start - 60 < when <= start + 1]
        boots += [start - max(before)] if before else []
    return sum(boots) / len(boots)


def simulated_joules(submit_s, times_s, boot_s) -> tuple[float, float]:
    """Return the simulated energy with all nodes on, and with power saving, until END_S."""
    count = len(JOBS)
    jobs = workload(
        np.arange(count + 1),
        {"submit_s": np.array(submit_s), "time_limit_s": np.full(count, 300.0)},
        {
            "units": np.array([nodes for _, _, nodes in JOBS]),
            "time_s": np.array(times_s),
            "power_watts": np.array([nodes * (MODEL.busy_watts - MODEL.idle_watts) for _, _, nodes in JOBS]),
        },
    )
    kind = NodeKind(
        "node",
        len(NODES),
        1,
        idle_watts=MODEL.idle_watts,
        off_watts=MODEL.off_watts,
        boot_s=boot_s,
        boot_watts=mean_boot_watts(boot_s),
        shutdown_s=EXPECTED_SHUTDOWN_S,
        shutdown_watts=mean_shutdown_watts(EXPECTED_SHUTDOWN_S),
    )
    easy = ScheduleSettings(discipline=Discipline.EASY, horizon_s=END_S)
    rules = PowerSavingRules(min_idle_s=MIN_IDLE_S, min_on_s=1.0, cycle_s=CYCLE_S)
    saving = ScheduleSettings(discipline=Discipline.EASY, horizon_s=END_S, power_saving=PowerSaving(rules))
    energies = [simulate(jobs, [kind], policy("fcfs"), one).energy_joules for one in (easy, saving)]
    return energies[0], energies[1]


def test_node_that_does_not_boot_is_left_alone(cluster, monkeypatch):
    (cluster.directory / "broken.n1").touch()
    with controller(cluster, monkeypatch) as made:
        wait_until(
            lambda: set(cluster.states().values()) == {"idle~"}, "all nodes off", cluster, timeout_s=90
        )
        cluster.submit(3, 1.0)
        wait_until(lambda: "down" in cluster.states()["n1"], "n1 down", cluster, timeout_s=150)
        boots = [node for _, state, node in read_changes_with_broken(cluster) if state == "broken"]
        wait_until(lambda: saving_status(made)["nodes"]["unavailable"] == 1, "the report", cluster)
        time.sleep(5 * CYCLE_S)
        again = [node for _, state, node in read_changes_with_broken(cluster) if state == "broken"]
    assert boots.count("n1") == again.count("n1") == 1


def read_changes_with_broken(cluster):
    return read_changes(cluster.directory)


def test_nodes_boot_for_jobs_after_senergyctld_was_killed(cluster, monkeypatch):
    with controller(cluster, monkeypatch) as made:
        wait_until(
            lambda: set(cluster.states().values()) == {"idle~"}, "all nodes off", cluster, timeout_s=90
        )
        made.process.kill()
        made.process.wait()
        job = cluster.submit(2, 1.0)
        wait_until(lambda: job_state(cluster, job) == "COMPLETED", "the job", cluster, timeout_s=90)
        # No drain, no reservation, no hold is left.
        assert not [state for state in cluster.states().values() if "drain" in state or "maint" in state]
        time.sleep(3 * CYCLE_S)
        assert list(cluster.states().values()).count("idle") == 2


def test_disabled_power_saving_of_slurm_is_explained(monkeypatch):
    directory = Path(tempfile.mkdtemp(prefix="senergy-", dir="/var/tmp"))
    try:
        with PoweredCluster(directory, suspend_time=-1) as cluster, controller(cluster, monkeypatch) as made:
            wait_until(lambda: saving_status(made).get("problems"), "a problem", cluster)
            assert "SuspendTime is -1" in saving_status(made)["problems"][0]
            time.sleep(2 * CYCLE_S)
            assert set(cluster.states().values()) == {"idle"}
    finally:
        shutil.rmtree(directory)


def job_state(cluster, job: int) -> str:
    output = cluster.run("scontrol", "-o", "show", "job", str(job)).stdout
    return output.partition("JobState=")[2].partition(" ")[0]
