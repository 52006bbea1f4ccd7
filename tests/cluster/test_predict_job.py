"""The same job several times on a real cluster: then `senergy predict` knows its time and energy."""

from __future__ import annotations

import json
import time

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]

SCRIPT = """#!/bin/sh
#SBATCH --nodes=1 --exclusive --nodelist=n1
#SBATCH --time=5 --output=/dev/null
#SBATCH --energy-policy=balanced

senergy lab run gemm --seconds $1
"""


def _predict(lab: LabDriver, *arguments: str) -> dict:
    return json.loads(lab.run("senergy", "predict", "--json", *arguments).stdout)


def _learned(lab: LabDriver) -> int:
    return json.loads(lab.run("senergy", "status", "--json").stdout)["controller"]["history"]["runs"]


def test_five_runs_predict_the_sixth(lab: LabDriver):
    path = lab.layout.root / "repeat.sh"
    path.write_text(SCRIPT)
    before = _learned(lab)
    assert _predict(lab, str(path), "8")["answer"]["source"] == "nameplate"
    runs = []
    for _ in range(5):
        job = int(lab.run("sbatch", "--parsable", str(path), "8").stdout)
        assert lab.wait(job) == "COMPLETED"
        runs += judges.acct(lab, job)
    deadline = time.monotonic() + 60
    while _learned(lab) < before + 5:
        assert time.monotonic() < deadline, "runs were not learned"
        time.sleep(0.5)

    found = _predict(lab, str(path), "8")
    answer = found["answer"]
    assert (answer["source"], answer["observations"]) == ("history", 5)
    assert answer["basis"] == "5 runs: same script, arguments, resources and policy"

    job = int(lab.run("sbatch", "--parsable", str(path), "8").stdout)
    assert lab.wait(job) == "COMPLETED"
    (sixth,) = judges.acct(lab, job)
    for name, true in (("duration_s", sixth["elapsed_s"]), ("energy_joules", sixth["energy_joules"])):
        print(name, true, answer[name], [run["elapsed_s" if name == "duration_s" else name] for run in runs])
        assert answer[name]["low"] <= true <= answer[name]["high"]
        assert answer[name]["mean"] == pytest.approx(true, rel=0.1)

    other = _predict(lab, str(path), "9")["answer"]
    assert (other["source"], other["basis"]) == ("history", "5 runs: same user, name and resources")
    page = lab.run("senergy", "predict", str(path), "8").stdout
    assert "basis   5 runs: same script" in page
