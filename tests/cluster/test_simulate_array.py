"""Test a simulation campaign that runs as a job array on a real Slurm cluster.

The results must be the same as those of a local run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from judges import PYTHON
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]

SCENARIO = """\
[cluster.n]
nodes = 4
[workload]
file = "jobs.csv"
[schedule]
policies = ["fcfs", "sjf"]
seeds = 2
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="senergy-simulate-", dir="/var/tmp"))
    rows = "".join(f"{10 * i},{1 + i % 4},{50 + i}\n" for i in range(20))
    (path / "jobs.csv").write_text(f"submit_s,units,time_s\n{rows}")
    (path / "small.toml").write_text(SCENARIO)
    yield path
    shutil.rmtree(path)


def test_a_campaign_as_a_job_array(lab: LabDriver, folder: Path):
    command = [PYTHON, "-m", "slurm_energy.cli.main", "simulate", str(folder / "small.toml"), "--json"]
    here = json.loads(lab.run(*command, timeout=240).stdout)
    out = folder / "out"
    array = [*command, "--out", str(out), "--jobs", "2", "--slurm=--time=5 --exclusive"]
    done = lab.run(*array, timeout=280)
    assert json.loads(done.stdout) == here
    assert len(list(out.glob("slurm-*_[01].out"))) == 2  # two tasks of the array have run
    assert {path.stem for path in (out / "runs").iterdir()} == {"fcfs-0", "fcfs-1", "sjf-0", "sjf-1"}
    (out / "runs/sjf-1.json").unlink()
    refused = lab.run(*array[:-1], "--slurm=--partition=nowhere", check=False, timeout=240)
    assert refused.returncode == 4 and "invalid partition" in refused.stderr.lower()
    assert refused.stderr.count("\n") == 1


def test_an_ended_command_cancels_its_array(lab: LabDriver, folder: Path):
    command = [PYTHON, "-m", "slurm_energy.cli.main", "simulate", str(folder / "small.toml")]
    command += ["--out", str(folder / "out"), "--slurm=--hold"]
    with subprocess.Popen(command, env=lab.env, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        found = re.search(r"job array (\d+) of", child.stderr.readline())
        assert found is not None
        waiting = lab.run("squeue", "--me", "--name=senergy-simulate", "-h", "-tPENDING", "-o%F").stdout
        assert waiting.split() == [found[1]]
        child.terminate()
        error = child.communicate(timeout=240)[1]
    assert f"array {found[1]} is cancelled" in error
    assert lab.wait(int(found[1])) == "CANCELLED"
