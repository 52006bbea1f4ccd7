"""Power saving by senergyctld on a real Slurm whose nodes are switched off and on.

The power supplies of the nodes are emulated: slurm_energy_lab.power_supply measures the true energy.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from own_controller import Controller, reserved_port
from small_cluster import NODES, SEARCH, SmallCluster, marks, wait_until

from slurm_energy.power_saving.power_down_rule import PowerSavingRules
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.registry import policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.schedule_settings import PowerSaving, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload
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
TRAINING = ((12.0, 2), (9.0, 1))
"""Run time in seconds and nodes of the jobs whose boots and run times are measured before the comparison."""
DECLARED = {
    "boot_s": 20.0,
    "boot_watts": 120.0,
    "shutdown_s": 10.0,
    "shutdown_watts": 60.0,
    "off_watts": 30.0,
}
"""Values in the configuration: wrong, so that only what was measured can make the simulation right."""
SLURM_PASS_S = 5.0
"""Longest time that slurmctld takes beyond the measured boot: to call ResumeProgram, and to start the job."""


PROLOG = Path(__file__).parents[2] / "prolog_epilog" / "prolog_slurmctld"


class PoweredCluster(SmallCluster):
    """A small Slurm cluster for tests, whose nodes have emulated power supplies.

    At its end, it also stops the daemons of nodes that Slurm has powered up.
    """

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
        """Return the state of each node, by the name of the node, as words in full such as `idle`."""
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
    values = (
        {
            "mode": '"on"',
            "boot_socket": f'"{cluster.directory}/boot.sock"',
            "risk": 0.2,
            "min_idle_s": MIN_IDLE_S,
            "min_on_s": 1.0,
            "cycle_s": CYCLE_S,
            "reserve_percent": 0.0,
            "idle_watts": '{ "n[1-3]" = 150.0 }',
            "power_program": f'"{cluster.directory}/power"',
            "power_program_interval_s": 1.0,
        }
        | DECLARED
        | settings
    )
    lines = "\n".join(f"{name} = {value}" for name, value in values.items())
    with reserved_port() as port:
        made = Controller(folder, cluster.directory / "munge.socket", port)
        made.configure(f"[power_saving]\n{lines}\n")
        made.start()
        try:
            yield made
        finally:
            made.process.terminate()
            made.process.wait(60)


def saving_status(made):
    return made.client().get("/v1/status")["power_saving"]


@pytest.mark.timeout(1200)
def test_energy_falls_as_predicted(cluster, monkeypatch):
    """Check that predicted energies of jobs agree with their true energies in the lab.

    The jobs are predicted before they run. The power and boot times of nodes are learned from earlier boots,
    the run times from earlier jobs.
    """
    learned, overhead_s = measure_boots(cluster, monkeypatch)
    jobs_s = [time_s + overhead_s for _, time_s, _ in JOBS]
    on_joules, saved_joules, boot_waits_s = simulated_joules(jobs_s, learned)
    print(f"learned {learned}, {overhead_s:.2f} s more than the sleep of a job")
    with controller(cluster, monkeypatch):
        wait_for_jobs(cluster, [cluster.submit(3, 0.5)])  # all nodes become idle now
        start = time.time()
        numbers = []
        for submit_s, time_s, nodes in JOBS:
            time.sleep(max(0.0, start + submit_s - time.time()))
            numbers.append((time.time() - start, cluster.submit(nodes, time_s)))
        time.sleep(max(0.0, start + END_S - time.time()))
    end = start + END_S
    changes = read_changes(cluster.directory)
    live = delivered_joules(changes, NODES, MODEL, start, end)
    busy = [busy_spans(cluster, job) for _, job in numbers]
    waits_s = [spans[0] - start - submit for (submit, _), spans in zip(numbers, busy, strict=True)]
    extra = sum((b - a) * nodes for (a, b), (_, _, nodes) in zip(busy, JOBS, strict=True))
    always_on = 3 * END_S * MODEL.idle_watts + extra * (MODEL.busy_watts - MODEL.idle_watts)
    for when, state, node in changes:
        print(f"{when - start:7.1f} {node} {state}")
    print(f"waits {[round(w, 1) for w in waits_s]} s, predicted {[round(w, 1) for w in boot_waits_s]} s")
    print(f"always on {always_on:.0f} J (predicted {on_joules:.0f} J)")
    print(f"live {live:.0f} J, predicted {saved_joules:.0f} J, ratio {live / saved_joules:.3f}")
    print(f"reduction live {1 - live / always_on:.3f}, predicted {1 - saved_joules / on_joules:.3f}")
    assert live < 0.8 * always_on
    assert live == pytest.approx(saved_joules, rel=0.08)
    assert always_on - live == pytest.approx(on_joules - saved_joules, rel=0.08)
    assert max(waits_s) <= learned["boot_s"] + SLURM_PASS_S


def measure_boots(cluster, monkeypatch) -> tuple[dict[str, float], float]:
    """Run a few jobs whose nodes must boot, and return two measurements.

    The first result is what senergyctld learns about the power of the nodes. The jobs only sleep for a given
    time. The second result is the mean number of seconds by which the jobs last longer than this time.
    """
    with controller(cluster, monkeypatch) as made:
        numbers = []
        for time_s, nodes in TRAINING:
            wait_until(
                lambda: set(cluster.states().values()) == {"idle~"}, "all nodes off", cluster, timeout_s=120
            )
            numbers.append(cluster.submit(nodes, time_s))
            wait_for_jobs(cluster, numbers[-1:])
        time.sleep(3 * CYCLE_S)
        (learned,) = saving_status(made)["energy"].values()
    cluster.run("scontrol", "update", f"NodeName={','.join(NODES)}", "State=POWER_UP")
    wait_until(lambda: set(cluster.states().values()) == {"idle"}, "all nodes on", cluster, timeout_s=120)
    spans = [busy_spans(cluster, job) for job in numbers]
    more = [end - start - time_s for (start, end), (time_s, _) in zip(spans, TRAINING, strict=True)]
    return learned, sum(more) / len(more)


def wait_for_jobs(cluster, jobs) -> None:
    wait_until(
        lambda: all(job_state(cluster, job) == "COMPLETED" for job in jobs), "jobs", cluster, timeout_s=120
    )


def busy_spans(cluster, job: int) -> tuple[float, float]:
    """Return when a completed job has started and ended, in Unix seconds."""
    output = cluster.run("scontrol", "-o", "show", "job", str(job), SLURM_TIME_FORMAT="%s").stdout
    values = dict(part.split("=", 1) for part in output.split() if "=" in part)
    assert values["JobState"] == "COMPLETED", output
    return float(values["StartTime"]), float(values["EndTime"])


def simulated_joules(times_s, learned) -> tuple[float, float, list[float]]:
    """Simulate the jobs of the test with and without power saving.

    Return three results: the energy if all nodes stay on, the energy with power saving, and the waits of the
    jobs with power saving.
    """
    count = len(JOBS)
    submit_s = np.array([submit for submit, _, _ in JOBS])
    jobs = workload(
        np.arange(count + 1),
        {"submit_s": submit_s, "time_limit_s": np.full(count, 300.0)},
        {
            "units": np.array([nodes for _, _, nodes in JOBS]),
            "time_s": np.array(times_s),
            "power_watts": np.array([nodes * (MODEL.busy_watts - MODEL.idle_watts) for _, _, nodes in JOBS]),
        },
    )
    kind = NodeKind("node", len(NODES), 1, **learned)
    easy = ScheduleSettings(discipline=Discipline.EASY, horizon_s=END_S)
    rules = PowerSavingRules(min_idle_s=MIN_IDLE_S, min_on_s=1.0, cycle_s=CYCLE_S)
    saving = ScheduleSettings(discipline=Discipline.EASY, horizon_s=END_S, power_saving=PowerSaving(rules))
    on, saved = [simulate(jobs, [kind], policy("fcfs"), one) for one in (easy, saving)]
    waits_s = saved.accounts.end_s - np.array(times_s) - submit_s
    return on.energy_joules, saved.energy_joules, waits_s.tolist()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("waits_for_boot", "trials"), [(True, 5), (False, 6)])
def test_wait_of_jobs_for_a_boot(monkeypatch, waits_for_boot, trials):
    """Print how long jobs wait when they arrive while the nodes are off or shutting down.

    The test runs once with the program prolog_slurmctld and once without it. Without prolog_slurmctld,
    slurmctld starts batch jobs in passes at times that are not predictable. With it, the test also checks
    that every job starts soon after slurmd has started.
    """
    directory = Path(tempfile.mkdtemp(prefix="senergy-", dir="/var/tmp"))
    try:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(PoweredCluster(directory, waits_for_boot=waits_for_boot))
            if waits_for_boot:
                stack.enter_context(controller(cluster, monkeypatch, mode='"observe"'))
            off = [
                measured_wait(cluster, 1 + trial % 3, None, 1.0 + trial * 7 % 11) for trial in range(trials)
            ]
            stopping = [measured_wait(cluster, 3, 0.5 + 0.7 * trial, 0.0) for trial in range(3)]
        for name, rows in (("off", off), ("shutting down", stopping)):
            print(f"nodes {name}: wait {[round(wait, 1) for wait, _ in rows]} s")
            print(f"after the start of slurmd: {[round(late, 1) for _, late in rows]} s")
        if waits_for_boot:
            assert max(late for _, late in off + stopping) <= SLURM_PASS_S
    finally:
        shutil.rmtree(directory)


def measured_wait(cluster, nodes: int, after_s: float | None, pause_s: float) -> tuple[float, float]:
    """Submit a job while its nodes shut down or are off, and measure how long it waits.

    Return the wait of the job, and the time from the start of the last slurmd to the job's start.

    Args:
        cluster: the cluster.
        nodes: nodes of the job.
        after_s: time from the begin of the shutdown until submission; None means to wait until all nodes are
            off.
        pause_s: further time before submission.
    """
    cluster.run("scontrol", "update", f"NodeName={','.join(NODES)}", "State=POWER_DOWN")
    if after_s is None:
        wait_until(lambda: set(cluster.states().values()) == {"idle~"}, "nodes off", cluster, timeout_s=60)
    time.sleep(pause_s + (after_s or 0.0))
    begin = time.time()
    wait_for_jobs(cluster, [cluster.submit(nodes, 1.0)])
    changes = [(when, state) for when, state, _ in read_changes(cluster.directory) if when > begin]
    start = min(when for when, state in changes if state == "busy")
    wait_until(lambda: "powering" not in str(cluster.states()), "the nodes", cluster, timeout_s=60)
    return start - begin, start - max(when for when, state in changes if state == "on" and when < start)


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


@pytest.mark.timeout(1200)
def test_nodes_stay_usable_whenever_senergyctld_is_killed(cluster, monkeypatch):
    """Nodes stay usable if senergyctld is killed in any state of power saving.

    The test kills senergyctld while nodes are idle, shut down, are off or boot, and while a job waits for
    them.
    """
    moments = random.Random(16)
    for _ in range(6):
        with controller(cluster, monkeypatch, min_idle_s=1.0, boot_s=1.0, shutdown_s=1.0) as made:
            first = cluster.submit(1, 0.5)
            delay_s = moments.uniform(0.0, 25.0)
            time.sleep(delay_s)
            second = cluster.submit(2, 0.5)
            time.sleep(moments.uniform(0.0, 8.0))
            made.process.kill()
            made.process.wait()
        wait_for_jobs(cluster, [first, second, cluster.submit(3, 0.5)])
        states = set(cluster.states().values())
        print(f"killed after {delay_s:.1f} s: {states}")
        assert states <= {"idle", "idle~", "completing"}, states


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
