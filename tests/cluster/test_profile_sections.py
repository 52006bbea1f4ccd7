"""Tests of the energy that programs measure for sections of their code.

The programs run in jobs of an unprivileged user. Their energies are compared with those of the node's model.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from judges import PYTHON
from lab_driver import LabDriver
from test_energy_truth import TruthRecorder

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.other_user]

USER = "nobody"
KERNEL = ["senergy", "lab", "run", "gemm", "--seconds"]
ATTEMPTS = 3
"""Programs wait a second for senergyd and no longer: without its answer a section has no joules."""
PROGRAM = f"""\
import subprocess, time
import slurm_energy

def measure(name, act):
    for _ in range({ATTEMPTS}):
        with slurm_energy.profile(name) as section:
            act()
        if section.energy_joules:
            return
        time.sleep(6)  # so long after a silence nobody asks again

measure("idle", lambda: time.sleep(3))
measure("kernel", lambda: subprocess.run({[*KERNEL, "6"]}, check=True))
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


def judge(recorder: TruthRecorder, line: dict, part: str) -> None:
    """Check that the energy of a section agrees with the energy of the node's model within 2 %.

    The model's energy is computed with the start and the end of the section shifted by up to `age_s`, the
    uncertainty that the section states.
    """
    start, end, age_s = line["start"], line["start"] + line["seconds"], line["age_s"]
    least = recorder.joules(part, start + age_s, end - age_s)
    most = recorder.joules(part, start - age_s, end + age_s)
    assert 0.98 * least <= line["energy_joules"][part] <= 1.02 * most, (line["section"], part, age_s)


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
            judge(recorder, line, part)
    assert found["kernel"]["mean_watts"] > 1.5 * found["idle"]["mean_watts"]


def test_ranks_on_two_nodes_are_combined_under_the_job(lab: LabDriver, folder: Path):
    command = f"srun --ntasks-per-node=2 senergy profile --name rank -- {' '.join(KERNEL)} 3"
    for _ in range(ATTEMPTS):
        with TruthRecorder(lab, "n1") as first, TruthRecorder(lab, "n2") as second:
            output = folder / "output"
            where = ["-wn1,n2", "-N2", "-o", str(output)]
            job = lab.sbatch(command, "--exclusive", *where, user=USER, cwd=folder)
            assert lab.wait(job) == "COMPLETED", output.read_text()
        directory = folder / f"senergy-profile.{job}"
        document = json.loads(lab.run("senergy", "profile", "--gather", str(directory), "--json").stdout)
        if all(line["energy_joules"] for line in document["lines"]):
            break
    assert sorted(line["rank"] for line in document["lines"]) == [0, 1, 2, 3]
    (section,) = document["sections"]
    assert (section["calls"], section["processes"], section["nodes"]) == (4, 4, 2)
    most = []
    for node, recorder in (("n1", first), ("n2", second)):
        own = [line for line in document["lines"] if line["node"] == node]
        most.append(max(own, key=lambda line: line["energy_joules"]["cpu"]))
        judge(recorder, most[-1], "cpu")
    once = sum(line["energy_joules"]["cpu"] for line in most)
    assert section["energy_joules"]["cpu"] == pytest.approx(once)


def test_a_forged_job_id_reveals_no_energy(lab: LabDriver, folder: Path):
    started = folder / "started"
    job = lab.sbatch(f"touch {started}; sleep 600", "--exclusive", "-wn1", user=USER, cwd=folder)
    deadline = time.monotonic() + 90
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)

    def spy(user: str) -> subprocess.CompletedProcess[str]:
        """Request the job's energy as another user until senergyd responds, for at most 60 s."""
        switch = ["setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups"]
        argv = [*switch, "env", f"SLURM_JOB_ID={job}", "SENERGY_PROFILE_DIR=", PYTHON, "-c", SPY]
        deadline = time.monotonic() + 60
        while True:
            done = lab.exec("n1", *argv)
            silent = json.loads(done.stdout)[0] is None and "another user" not in done.stderr
            if not silent or time.monotonic() > deadline:
                return done

    assert json.loads(spy("nobody").stdout)[0] is not None
    found = spy("daemon")
    assert json.loads(found.stdout) == [None, {}]
    assert "belongs to another user" in found.stderr
