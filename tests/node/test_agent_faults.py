"""Tests of faults around senergyd, and of their effect on jobs and settings.

The faults are unanswered hooks, long stops of senergyd, full disks, lost GPUs, drivers that fail, and steps
of the clock.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crashing_agent import HOOK, CrashingAgent

from slurm_energy.records import EnergyRecord
from slurm_energy_lab import client

pytestmark = [
    pytest.mark.node,
    pytest.mark.root,
    pytest.mark.skipif(not HOOK.exists(), reason="the hook is not built: make build"),
]

GPU_NODE = "xeon-4210-rtx6000"


@pytest.fixture
def started(emulate: Callable[..., Any]) -> Iterator[Callable[..., CrashingAgent]]:
    agents: list[CrashingAgent] = []

    def start(profile: str = GPU_NODE, *, begin: bool = True, extra: str = "") -> CrashingAgent:
        agents.append(CrashingAgent(emulate(profile), extra))
        return agents[-1].start() if begin else agents[-1]

    yield start
    for agent in agents:
        agent.remove()


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def record_of(agent: CrashingAgent, job_id: int) -> EnergyRecord:
    """Return the only record of a job."""
    eventually(lambda: agent.controller.of_job(job_id), f"a record of job {job_id}")
    (record,) = agent.controller.of_job(job_id)
    return record


def joules(record: EnergyRecord) -> dict[str, float | None]:
    return {part.name: part.energy_joules for part in record.components}


def test_an_unanswered_epilog_takes_effect_at_the_next_start(started: Callable[..., CrashingAgent]) -> None:
    agent = started()
    before = agent.settings()
    agent.begin(1, policy="powersave")
    agent.kill()
    agent.wait_dead()
    done = agent.hook("end", agent.env(1))
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert agent.settings() != before
    agent.start()
    assert agent.settings() == before
    record = record_of(agent, 1)
    assert any("s before senergyd received its message" in note for note in record.notes)
    assert all(setting.restored for setting in record.applied)
    agent.come_to_rest()


def test_an_unanswered_epilog_and_then_the_next_prolog(started: Callable[..., CrashingAgent]) -> None:
    """senergyd recovers after it hung during the end of one job and the start of the next job.

    While senergyd hangs, the epilog of the first job gets no response, and the second job begins. Then
    senergyd continues. It must end the first job, run the second one, and restore the settings at the
    end.
    """
    agent = started()
    before = agent.settings()
    agent.begin(1, policy="powersave")
    agent.pause()
    agent.hook("end", agent.env(1))
    begin = {**agent.env(2), "SPANK_ENERGY_POLICY": "performance"}
    agent.hook("begin", begin)
    agent.go_on()
    eventually(lambda: [job["job_id"] for job in agent.ask(op="status")["jobs"]] == [2], "only job 2")
    assert agent.hook("end", begin, patient=True).stderr == ""
    agent.come_to_rest()
    assert agent.settings() == before
    assert [record_of(agent, job_id).policy for job_id in (1, 2)] == ["powersave", "performance"]


def test_a_prolog_does_not_wait_for_a_stopped_senergyd_and_the_record_says_so(
    started: Callable[..., CrashingAgent],
) -> None:
    agent = started()
    env = {**agent.env(1), "SPANK_ENERGY_POLICY": "powersave"}
    agent.pause()
    done = agent.hook("begin", env)
    assert done.returncode == 0
    assert "no answer in time: the job starts; its settings and record begin when" in done.stderr
    agent.go_on()
    eventually(lambda: agent.ask(op="status")["jobs"], "the job is taken up")
    assert agent.hook("end", env, patient=True).stderr == ""
    record = record_of(agent, 1)
    assert "s before senergyd received its message; not measured until then" in record.notes[0]
    assert record.policy == "powersave"
    agent.come_to_rest()


def test_a_job_while_senergyd_sleeps_has_a_record_without_energy(
    started: Callable[..., CrashingAgent],
) -> None:
    """A job that begins and ends while senergyd is stopped gets a record without energy.

    The messages about the job also wait in the socket until senergyd continues. They must not begin the job
    a second time.
    """
    agent = started()
    before = agent.settings()
    agent.pause()
    for operation in ("begin", "end"):
        agent.hook(operation, {**agent.env(1), "SPANK_ENERGY_POLICY": "powersave"})
    agent.go_on()
    assert record_of(agent, 1).energy_joules is None
    agent.come_to_rest()
    assert agent.settings() == before
    assert list(agent.controller.deliveries.values()) == [1]


def test_restore_by_hand_while_three_jobs_are_journaled(started: Callable[..., CrashingAgent]) -> None:
    agent = started()
    before = agent.settings()
    jobs = {}
    for index in range(3):
        jobs[index + 1] = {
            **agent.env(index + 1),
            "SLURM_JOB_CPUS_PER_NODE": str(agent.cpus // 4),
            "SLURM_JOB_GPUS": str(index),
            "SPANK_ENERGY_GPU_CAP": "150",
            "SPANK_ENERGY_POLICY": "cap",
        }
        assert agent.ask(op="begin", env=jobs[index + 1])["applied"] > 0
    assert agent.restore().returncode == 7  # not beside a running one
    agent.kill()
    agent.wait_dead()
    assert agent.settings() != before
    done = agent.restore()
    assert done.returncode == 0, done.stdout + done.stderr
    assert agent.settings() == before
    assert agent.journal() == []
    agent.start()
    for env in jobs.values():
        assert agent.ask(op="end", env=env)["known"]
    agent.come_to_rest()
    assert agent.settings() == before
    for job_id in jobs:
        assert all(setting.restored for setting in record_of(agent, job_id).applied)


def test_a_gpu_that_falls_off_the_bus(started: Callable[..., CrashingAgent]) -> None:
    agent = started()
    before = agent.settings()
    agent.begin(1, policy="cap", gpu_cap="150")
    client.set_fault(agent.node.socket, "/dev/nvidia2", "EIO")
    eventually(lambda: "nvml:gpu2: cannot be read" in agent.log(), "senergyd notices")
    assert agent.hook("end", agent.env(1), patient=True).stderr == ""
    status = agent.ask(op="status")
    assert [key for key in status["unrestored"] if "gpu2" not in key] == []
    assert "nvml.power_limit[gpu2]" in status["unrestored"]
    record = record_of(agent, 1)
    parts = {part.name: part for part in record.components}
    assert (parts["gpu[2]"].quality, parts["gpu[1]"].quality) == ("partial", "measured")
    limits = {s.setting: s for s in record.applied if s.setting.startswith("nvml.power_limit")}
    lost = next(setting for name, setting in limits.items() if "gpu2" in name)
    assert (lost.restored, "not restored: " in lost.note) == (False, True)
    assert sum(s.restored is True for s in limits.values()) == len(limits) - 1
    agent.begin(2, policy="cap", gpu_cap="150")
    assert agent.hook("end", agent.env(2), patient=True).stderr == ""
    assert sum("gpu2" in line for line in agent.log().splitlines()) < 20
    client.set_fault(agent.node.socket, "/dev/nvidia2", None)
    agent.come_to_rest()
    eventually(lambda: agent.settings() == before, "the GPU's limit is back")


def test_drivers_that_go_and_come_back(started: Callable[..., CrashingAgent]) -> None:
    agent = started()
    before = agent.settings()
    agent.begin(1, policy="powersave")
    client.set_fault(agent.node.socket, "/sys/", "ENODEV")
    eventually(lambda: "powercap:package-0: cannot be read" in agent.log(), "senergyd notices")
    assert agent.hook("end", agent.env(1), patient=True).stderr == ""
    assert record_of(agent, 1).uncertain_seconds > 0
    client.set_fault(agent.node.socket, "/sys/", None)
    eventually(lambda: agent.settings() == before and not agent.journal(), "the settings are back")
    assert agent.ask(op="status")["unrestored"] == []

    def lost() -> int:
        return agent.log().count(": cannot be read: ")

    agent.begin(2)
    # If the fault lasts a second, the power meter, which is read once per second, fails too.
    eventually(lambda: 4 <= agent.log().count("can be read again") == lost(), "the counters are back")
    agent.begin(3)
    assert agent.ask(op="end", env=agent.env(3))["known"]
    assert record_of(agent, 3).uncertain_seconds == 0
    assert agent.log().count("counter powercap:package-0: cannot be read") == 1


@pytest.mark.parametrize("dies", [False, True])
def test_a_driver_that_hangs(started: Callable[..., CrashingAgent], dies: bool) -> None:
    """Hooks do not wait for a hanging senergyd, and take effect when it continues.

    senergyd stops as if no call into the driver returned. In a variant of the test, it is killed before it
    continues.
    """
    agent = started()
    before = agent.settings()
    env = {**agent.env(2), "SPANK_ENERGY_POLICY": "powersave"}
    agent.begin(1, policy="powersave")
    assert agent.node.process is not None
    agent.node.process.send_signal(signal.SIGSTOP)
    try:
        assert "senergyd ends the job when it is back" in agent.hook("end", agent.env(1)).stderr
        assert "begin when senergyd is back" in agent.hook("begin", env).stderr
        if dies:
            agent.kill()
    finally:
        agent.node.process.send_signal(signal.SIGCONT)
    if dies:
        agent.wait_dead()
        agent.start()
    eventually(lambda: [job["job_id"] for job in agent.ask(op="status")["jobs"]] == [2], "only job 2")
    assert agent.settings() != before
    assert agent.hook("end", env, patient=True).stderr == ""
    agent.come_to_rest()
    assert agent.settings() == before
    assert sorted(record.job_id for record in agent.controller.records.values()) == [1, 2]


def test_file_systems_that_die_under_senergyd(started: Callable[..., CrashingAgent]) -> None:
    """senergyd survives the death of the file system that shows the hardware.

    Every file of the hardware yields ENOTCONN until senergyd and the node restart.
    """
    agent = started()
    before = agent.settings()
    agent.begin(1, policy="powersave", cap="400")
    assert agent.node.process is not None
    agent.node.process.kill()
    agent.node.process.wait(timeout=60)
    eventually(lambda: "Transport endpoint is not connected" in agent.log(), "senergyd notices")
    assert agent.hook("end", agent.env(1), patient=True).stderr == ""
    assert (
        agent.hook("begin", {**agent.env(2), "SPANK_ENERGY_POLICY": "powersave"}, patient=True).stderr == ""
    )
    assert agent.hook("end", agent.env(2), patient=True).stderr == ""
    assert record_of(agent, 1).notes
    assert record_of(agent, 2).energy_joules in (None, 0)
    lines = agent.log().count("\n")
    assert lines < 50, agent.log()
    agent.kill()
    agent.wait_dead()
    agent.node.start()
    agent.move_in()
    agent.start()
    assert agent.settings() == before
    agent.come_to_rest()
    assert agent.ask(op="status")["unrestored"] == []


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_step_of_the_wall_clock(started: Callable[..., CrashingAgent], step_s: int) -> None:
    agent = started()
    begun = time.time()
    truth = agent.truth()["energy_joules"]
    agent.begin(1)
    agent.ask(op="step", event="start", job_id=1, step="0", pid=1, cpus="0")
    agent.ask(op="energy", job_id=1, fresh=True)
    agent.step_clock(step_s)
    agent.ask(op="energy", job_id=1, fresh=True)
    agent.kill()
    agent.wait_dead()
    agent.start()
    agent.ask(op="step", event="end", job_id=1, step="0")
    assert agent.ask(op="end", env=agent.env(1))["known"]
    eventually(lambda: len(agent.controller.of_job(1)) == 2, "both records")
    agent.begin(2)
    agent.ask(op="end", env=agent.env(2))
    agent.come_to_rest()
    assert record_of(agent, 2).start == pytest.approx(time.time() + step_s, abs=60)
    used = agent.truth()["energy_joules"]["cpu"] - truth["cpu"]
    for record in agent.controller.of_job(1):
        assert begun - 1 <= record.start <= record.end <= time.time() + 1
        assert record.uncertain_seconds == 0
        assert 0 < joules(record)["cpu"] <= used


def test_a_full_disk(started: Callable[..., CrashingAgent]) -> None:
    """senergyd can restore every setting that it has written, even if its disk becomes full.

    No energy record is lost. The state directory of the test has a size of 1 MB.
    """
    agent = started(begin=False)
    state = agent.folder / "state"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "senergy-test", state], check=True)
    try:
        _fill_the_disk(agent, state)
    finally:
        subprocess.run(["umount", "-l", state], check=True)


def _fill(agent: CrashingAgent, ballast: Path, stack: contextlib.ExitStack | None = None) -> None:
    """Fill the disk of senergyd completely.

    The disk is filled again until senergyd is not writing a file, because the end of a write may free space.
    If `stack` is given, all files on the disk are opened and stay open until the end of `stack`.
    """

    def is_full() -> bool:
        agent.pause()
        try:
            if stack is not None:
                for path in ballast.parent.rglob("*"):
                    if path.is_file():
                        stack.enter_context(path.open("rb"))
            with pytest.raises(OSError, match="No space left"), ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(b"x" * 512)
            return not list(ballast.parent.rglob(".*.new"))
        finally:
            agent.go_on()

    eventually(is_full, "the disk is full")


@contextlib.contextmanager
def _kept_full(agent: CrashingAgent, ballast: Path) -> Iterator[None]:
    """Context manager that fills the disk of senergyd completely and keeps it full.

    All files stay open. Therefore, a file that senergyd removes or replaces, for example a checkpoint, frees
    no space.
    """
    with contextlib.ExitStack() as stack:
        _fill(agent, ballast, stack)
        yield


def _fill_the_disk(agent: CrashingAgent, state: Path) -> None:
    agent.move_in()
    agent.start()
    before = agent.settings()
    agent.begin(1, policy="powersave")
    assert agent.settings() != before
    ballast = state / "ballast"
    agent.controller.available.clear()  # a delivered record would free space after the disk was filled
    _fill(agent, ballast)
    agent.ask(op="step", event="start", job_id=1, step="0", pid=1, cpus="0")
    assert agent.hook("end", agent.env(1), patient=True).stderr == ""
    assert agent.settings() == before  # the journal cannot be written, yet the job has ended
    with _kept_full(agent, ballast):  # also the space that the first job no longer needs
        answer = agent.begin(2, policy="powersave")
    assert answer["applied"] == 0
    assert answer["failed"] > 0
    assert agent.settings() == before
    agent.ask(op="end", env=agent.env(2))
    assert agent.log().count("No space left on device") < 10
    ballast.unlink()
    agent.controller.available.set()
    agent.come_to_rest()
    assert [len(agent.controller.of_job(job_id)) for job_id in (1, 2)] == [2, 1]
    notes = [setting.note for record in agent.controller.of_job(2) for setting in record.applied]
    assert all("journal cannot be written" in note for note in notes)
    agent.begin(3, policy="powersave")
    agent.ask(op="end", env=agent.env(3))
    agent.come_to_rest()
    assert agent.settings() == before
