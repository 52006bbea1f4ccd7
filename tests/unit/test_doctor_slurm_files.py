"""Tests of the verdicts of `senergy doctor` on lines of slurm.conf and on job_submit.lua."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slurm_energy.doctor.slurm_checks import slurm_checks
from slurm_energy.doctor.slurm_files import inspect_slurm_files
from slurm_energy.doctor.verdict import CheckResult, CheckState


def checks(folder: Path, lines: str) -> dict[str, CheckResult]:
    """Return the checks of a host that is both controller and compute node, by name."""
    conf = folder / "slurm.conf"
    conf.write_text(f"ClusterName=c\nSlurmctldHost=n1\nNodeName=n1\n{lines}\n")
    return {check.name: check for check in slurm_checks(inspect_slurm_files(conf, ["n1"]))}


@pytest.mark.parametrize(
    ("lines", "is_degraded"),
    [
        ("PrologFlags=X11", False),
        ("PrologFlags=Contain", False),
        ("PrologFlags=DeferBatch,NoHold", False),
        ("PrologFlags=Serial\nPrologFlags=alloc", False),
        ("PrologFlags=Alloc\nPrologFlags=Serial", True),
        ("", True),
    ],
)
def test_a_flag_that_implies_alloc_is_enough_and_the_last_line_counts(
    tmp_path: Path, lines: str, is_degraded: bool
) -> None:
    assert ("PrologFlags" in checks(tmp_path, lines)) is is_degraded


def test_a_script_that_a_later_line_does_not_name_is_not_judged(tmp_path: Path) -> None:
    found = checks(tmp_path, "JobSubmitPlugins=lua\nJobSubmitPlugins=throttle")
    assert "job_submit.lua file" not in found and found["job_submit"].state is CheckState.ABSENT


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to another user")
@pytest.mark.parametrize(
    ("owner", "script", "is_fault"),
    [
        ("daemon", 'pcall(require, "senergy_submit")\n', False),
        ("root", 'pcall(require, "senergy_submit")\n', False),
        ("bin", 'pcall(require, "senergy_submit")\n', True),
        ("bin", "return slurm.SUCCESS\n", False),
    ],
)
def test_slurm_user_may_own_a_script(tmp_path: Path, owner: str, script: str, is_fault: bool) -> None:
    path = tmp_path / "job_submit.lua"
    path.write_text(script)
    shutil.chown(path, owner)
    found = checks(tmp_path, "SlurmUser=daemon\nJobSubmitPlugins=lua")
    assert ("job_submit.lua file" in found) is is_fault


def test_a_script_that_is_missing_is_a_fault(tmp_path: Path) -> None:
    fault = checks(tmp_path, "JobSubmitPlugins=lua")["job_submit.lua file"]
    assert fault.finding == f"{tmp_path}/job_submit.lua is missing"
