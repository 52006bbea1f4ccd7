"""Sections measured by programs in jobs of a user without rights, against the integral of the model."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from judges import PYTHON
from lab_driver import LabDriver
from test_energy_truth import TruthRecorder

pytestmark = [pytest.mark.cluster, pytest.mark.root]

USER = "nobody"
KERNEL = ["senergy", "lab", "run", "gemm", "--seconds"]
PROGRAM = f"""\
import subprocess, time
import slurm_energy

with slurm_energy.profile("idle"):
    time.sleep(3)
with slurm_energy.profile("kernel"):
    subprocess.run({[*KERNEL, "6"]}, check=True)
"""
SPY = """\
import json, slurm_energy
with slurm_energy.profile("spy") as section:
    pass
print(json.dumps([section.total_joules, section.energy_joules]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every user may write to."""
    path = Path(tempfile.mkdtemp(prefix="senergy-profile-", dir="/var/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def lines(folder: Path) -> list[dict]:
    files = sorted(folder.glob("*/*.jsonl"))
    return [json.loads(text) for file in files for text in file.read_text().splitlines()]


def test_sections_of_a_user_s_job_are_the_model_s_integral(lab: LabDriver, folder: Path):
    program = folder / "program.py"
    program.write_text(PROGRAM)
    with TruthRecorder(lab, "n1") as recorder:
        output = folder / "output"
        job = lab.sbatch(
            f"{PYTHON} {program}", "--exclusive", "-wn1", "-o", str(output), user=USER, cwd=folder
        )
        assert lab.wait(job) == "COMPLETED", output.read_text()
    found = {line["section"]: line for line in lines(folder)}
    for name in ("idle", "kernel"):
        line = found[name]
        assert (line["source"], line["job_id"], line["node"]) == ("agent", job, "n1")
        for part in ("cpu", "dram"):
            truth = recorder.joules(part, line["start"], line["start"] + line["seconds"])
            assert line["energy_joules"][part] == pytest.approx(truth, rel=0.02), (name, part)
    assert found["kernel"]["mean_watts"] > 1.5 * found["idle"]["mean_watts"]


def test_ranks_on_two_nodes_are_gathered_under_the_job(lab: LabDriver, folder: Path):
    command = f"srun --ntasks-per-node=2 senergy profile --name rank -- {' '.join(KERNEL)} 3"
    with TruthRecorder(lab, "n1") as first, TruthRecorder(lab, "n2") as second:
        output = folder / "output"
        where = ["-wn1,n2", "-N2", "-o", str(output)]
        job = lab.sbatch(command, "--exclusive", *where, user=USER, cwd=folder)
        assert lab.wait(job) == "COMPLETED", output.read_text()
    directory = folder / f"senergy-profile.{job}"
    document = json.loads(lab.run("senergy", "profile", "--gather", str(directory), "--json").stdout)
    assert sorted(line["rank"] for line in document["lines"]) == [0, 1, 2, 3]
    (section,) = document["sections"]
    assert (section["calls"], section["processes"], section["nodes"]) == (4, 4, 2)
    truth = 0.0
    for node, recorder in (("n1", first), ("n2", second)):
        own = [line for line in document["lines"] if line["node"] == node]
        most = max(own, key=lambda line: line["energy_joules"]["cpu"])
        truth += recorder.joules("cpu", most["start"], most["start"] + most["seconds"])
    assert section["energy_joules"]["cpu"] == pytest.approx(truth, rel=0.02)


def test_a_forged_job_id_opens_nobody_s_energy(lab: LabDriver, folder: Path):
    started = folder / "started"
    job = lab.sbatch(f"touch {started}; sleep 120", "--exclusive", "-wn1", user=USER, cwd=folder)
    deadline = time.monotonic() + 30
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    spies = {}
    for user in ("nobody", "daemon"):
        switch = [
            "setpriv",
            f"--reuid={user}",
            "--regid=nogroup",
            "--clear-groups",
            "env",
            f"SLURM_JOB_ID={job}",
        ]
        argv = [*switch, "SENERGY_PROFILE_DIR=", PYTHON, "-c", SPY]
        spies[user] = lab.exec("n1", *argv)
    assert json.loads(spies["nobody"].stdout)[0] is not None
    assert json.loads(spies["daemon"].stdout) == [None, {}]
    assert "belongs to another user" in spies["daemon"].stderr
