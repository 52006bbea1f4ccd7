"""Tests of `senergy predict` on a real cluster.

Time and energy of a job are predicted from earlier runs of the same job.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path

import judges
import pytest
from lab_driver import LabDriver

from slurm_energy.slurm.batch_script import parse_time_limit, read_script
from slurm_energy.slurm.tres import parse_tres

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.timeout(600)]

SCRIPT = """#!/bin/sh
#SBATCH --nodes=1 --exclusive --nodelist=n1
#SBATCH --time=5 --output=/dev/null
#SBATCH --energy-policy=balanced

senergy lab run gemm --seconds $1
"""


RUNS, KERNEL_S = 3, "3"
LIKE_IT = re.compile(r"(\d+) runs: same script, arguments, resources and policy")


def _predict(lab: LabDriver, *arguments: str) -> dict:
    return json.loads(lab.run("senergy", "predict", "--json", *arguments).stdout)


def _run(lab: LabDriver, path: Path) -> int:
    """Submit the test's batch script, wait for its end, and return the job id."""
    job = int(lab.run("sbatch", "--parsable", str(path), KERNEL_S).stdout)
    assert lab.wait(job) == "COMPLETED"
    return job


def _learned(lab: LabDriver, path: Path, runs: int) -> dict:
    """Wait until the controller predicts a job from exactly `runs` earlier runs of the job.

    Return the prediction. The wait is necessary because the controller is also busy with the jobs of other
    tests.
    """
    deadline = time.monotonic() + 90
    while True:
        answer = _predict(lab, str(path), KERNEL_S)["prediction"]
        found = LIKE_IT.fullmatch(answer["basis"])
        if found and int(found[1]) == runs:
            return answer
        assert time.monotonic() < deadline, answer["basis"]
        time.sleep(0.5)


def test_the_next_run_is_predicted_from_the_runs_before(lab: LabDriver):
    """After some runs of a job script, `senergy predict` predicts its next run from these runs.

    The test compares the prediction with the measured time and energy of the runs. The same work takes
    longer on a busy machine. Therefore the bounds of the test are the lowest and highest values of the
    measured runs, with a margin. The predicted variation is learned from all jobs of the cluster, so the
    mean may lie outside the range of these three runs.
    """
    path = lab.layout.root / "repeat.sh"
    path.write_text(SCRIPT)
    assert "same script" not in _predict(lab, str(path), KERNEL_S)["prediction"]["basis"]
    jobs = [_run(lab, path) for _ in range(RUNS)]
    answer = _learned(lab, path, RUNS)
    assert (answer["source"], answer["observations"]) == ("history", RUNS)
    runs = judges.acct(lab, *jobs)
    for name, key in (("duration_s", "elapsed_s"), ("energy_joules", "energy_joules")):
        figures = [run[key] for run in runs]
        predicted = answer[name]
        assert 0.8 * min(figures) <= predicted["mean"] <= 1.25 * max(figures), (name, figures, predicted)
        assert predicted["low"] <= predicted["mean"] <= predicted["high"], name
        assert predicted["low"] <= statistics.median(figures) <= predicted["high"], (name, figures)
    other = _predict(lab, str(path), "9")["prediction"]
    assert other["source"] == "history"
    assert re.fullmatch(r"\d+ runs: same user, name and resources", other["basis"])
    page = lab.run("senergy", "predict", str(path), KERNEL_S).stdout
    assert re.search(r"basis   \d+ runs: same script", page)


AS_SBATCH = [
    "-N2 --ntasks-per-node=2 -c2 -t 1-2:30 -J 'a b' # -N4",
    "-N 1-2 -n 4 --time=90:30",
    '--job-name=x#y --nodes=2 --partition="gpu"',
    '-J "q\'uote" -t 0:59 --exclusive',
    "-J cape\\#d -n 3",
    "-n 2 -J es\\ -c 2",
    "-J 'a\\'b' -n 3",
    "-J a\\\\b -n 3",
    '-J "a\\"b c" -n 3',
    "-n 3 \\",
    "--gpus-per-node=2 -N2 --partition gpu",
    "--gres=gpu:1 -n2 -c 3 --partition=gpu",
    "-G 4 -N 2 -p gpu",
    "--gpus-per-task=1 -n2 -p gpu",
    "-n 4 --ntasks-per-node=2",
    "--ntasks=2 --cpus-per-t=2",
    "-HN2 -t2-0",
    "-t 10:01",
]


def test_scripts_are_read_as_sbatch_reads_them(lab: LabDriver):
    """The parser of batch scripts reads each #SBATCH line as sbatch does.

    For each line, a held job is submitted. slurmctld must show the values that the parser found.
    """
    wrong: list[tuple[object, ...]] = []
    for line in AS_SBATCH:
        text = f"#!/bin/sh\n\n# remark\n#SBATCH {line}\nsrun true\n#SBATCH -N 3\n"
        script = read_script("sbatch", text.encode())
        job = lab.run("sbatch", "--parsable", "--hold", "--output=/dev/null", input=text, check=False)
        if job.returncode:
            wrong.append((line, job.stderr))
            continue
        try:
            shown = lab.run("scontrol", "show", "job", job.stdout.strip()).stdout
        finally:
            lab.run("scancel", job.stdout.strip())
        facts = dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+(?:/\w+)?[=:]|\n|$)", shown))
        asked = parse_tres(facts.get("ReqTRES") or facts["TRES"])
        limit = parse_time_limit(facts["TimeLimit"])
        found = (script.name, script.nodes, script.cpus, script.gpus)
        wish = (facts["JobName"], asked.nodes, asked.cpus, asked.gpus or 0)
        wrong += [(line, found, wish)] if found != wish else []
        wrong += [(line, script.time_limit_s, limit)] if script.time_limit_s not in (limit, None) else []
        wrong += [(line, script.partition)] if script.partition not in (facts["Partition"], None) else []
    assert wrong == []
