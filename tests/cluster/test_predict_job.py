"""The same job several times on a real cluster: then `senergy predict` knows its time and energy."""

from __future__ import annotations

import json
import re
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


LIKE_IT = re.compile(r"(\d+) runs: same script, arguments, resources and policy")


def _predict(lab: LabDriver, *arguments: str) -> dict:
    return json.loads(lab.run("senergy", "predict", "--json", *arguments).stdout)


def _run(lab: LabDriver, path: Path) -> int:
    """Run the job once, and return its number."""
    job = int(lab.run("sbatch", "--parsable", str(path), "8").stdout)
    assert lab.wait(job) == "COMPLETED"
    return job


def _learned(lab: LabDriver, path: Path, runs: int) -> dict:
    """Return the answer that rests on so many runs of this job; other tests' jobs are learned meanwhile."""
    deadline = time.monotonic() + 90
    while True:
        answer = _predict(lab, str(path), "8")["prediction"]
        found = LIKE_IT.fullmatch(answer["basis"])
        if found and int(found[1]) == runs:
            return answer
        assert time.monotonic() < deadline, answer["basis"]
        time.sleep(0.5)


def test_five_runs_predict_the_sixth(lab: LabDriver):
    path = lab.layout.root / "repeat.sh"
    path.write_text(SCRIPT)
    assert "same script" not in _predict(lab, str(path), "8")["prediction"]["basis"]
    for _ in range(5):
        _run(lab, path)
    answer = _learned(lab, path, 5)
    assert (answer["source"], answer["observations"]) == ("history", 5)
    # One in ten lies outside a range from 5 to 95 %, more where the machine is busier than it was; the next
    # answer knows of it.
    for runs in range(6, 11):
        (run,) = judges.acct(lab, _run(lab, path))
        if _as_predicted(run, answer):
            break
        answer = _learned(lab, path, runs)
    else:
        raise AssertionError("five times not as predicted")
    other = _predict(lab, str(path), "9")["prediction"]
    assert other["source"] == "history"
    assert re.fullmatch(r"\d+ runs: same user, name and resources", other["basis"])
    page = lab.run("senergy", "predict", str(path), "8").stdout
    assert re.search(r"basis   \d+ runs: same script", page)


def _as_predicted(run: dict, answer: dict) -> bool:
    """Whether time and energy of a run are within their ranges and 10 % of the mean."""
    figures = ((answer["duration_s"], run["elapsed_s"]), (answer["energy_joules"], run["energy_joules"]))
    print(figures)
    return all(
        found["low"] <= true <= found["high"] and found["mean"] == pytest.approx(true, rel=0.1)
        for found, true in figures
    )


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
    """Each #SBATCH line is submitted on hold; slurmctld's words about the job must be the parser's."""
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
