"""slurmstepd processes are identified by their title or their control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.slurm.step_process import StepProcess, has_children, step_of_process

PID = 4711
V2 = "0::/system.slice/n1_slurmstepd.scope/job_12/step_{}/slurm\n"
V1 = "5:memory:/slurm_n1/uid_1001/job_12/step_{}\n4:cpuset:/\n"


def process(root: Path, title: bytes, cgroup: str = "0::/system.slice/slurmd.service\n") -> Path:
    folder = root / "proc" / str(PID)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cmdline").write_bytes(title)
    (folder / "cgroup").write_text(cgroup)
    return root


@pytest.mark.parametrize(
    ("title", "step"),
    [
        (b"slurmstepd: [12.0]\0", "0"),
        (b"slurmstepd: [12.extern]\0\0\0\0", "extern"),
        (b"slurmstepd: [12.extern stepmgr]\0", "extern"),
        (b"slurmstepd: [12.batch]\0", "batch"),
        (b"slurmstepd: [12.interactive]", "interactive"),
        (b"slurmstepd: [12.3+1]\0", "3"),
    ],
)
def test_the_title_names_job_and_step(tmp_path, title, step):
    assert step_of_process(process(tmp_path, title), PID) == StepProcess(12, step)


@pytest.mark.parametrize("form", [V1, V2])
@pytest.mark.parametrize("step", ["0", "extern", "batch"])
def test_the_control_group_is_the_second_source(tmp_path, form, step):
    root = process(tmp_path, b"/usr/sbin/slurmstepd\0", form.format(step))
    assert step_of_process(root, PID) == StepProcess(12, step)


def test_a_slurmstepd_without_a_step_is_not_taken_for_slurmd(tmp_path):
    assert step_of_process(process(tmp_path, b"/usr/sbin/slurmstepd\0infinity\0"), PID) == (None, "")
    title = b"slurmstepd: [99999999999999.0]\0"
    assert step_of_process(process(tmp_path, title), PID) == (None, "")


@pytest.mark.parametrize("title", [b"/usr/sbin/slurmd\0-D\0", b"", b"sh\0-c\0slurmstepd: [12.0]\0"])
def test_other_processes_are_not_steps(tmp_path, title):
    assert step_of_process(process(tmp_path, title), PID) is None


def test_a_process_that_has_ended_is_not_a_step(tmp_path):
    assert step_of_process(tmp_path, PID) is None


def test_children_of_all_threads_count(tmp_path):
    for thread, children in ((PID, ""), (PID + 1, "")):
        folder = tmp_path / "proc" / str(PID) / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "children").write_text(children)
    assert not has_children(tmp_path, PID)
    (folder / "children").write_text("4800 4801 ")
    assert has_children(tmp_path, PID)
    assert not has_children(tmp_path, PID + 1)
