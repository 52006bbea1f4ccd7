"""Tests of the functions with which a Python program submits and follows jobs.

The tests use stand-ins for Slurm's commands. They cover the command line of sbatch, waiting, the record and
power trace of a job, and its cancellation.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
from report_examples import answer, job_info, record

from slurm_energy import jobs
from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.jobs import EnergyJob, RefusedError
from slurm_energy.jobs import energy_job as module


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put programs into PATH that write their arguments to a file and print what the test says."""

    def program(name: str, text: str = "", code: int = 0) -> None:
        path = tmp_path / name
        path.write_text(
            "#!/usr/bin/env python3\nimport json, sys\n"
            f"open({str(tmp_path / name)!r} + '.args', 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
            f"print({text!r}, file=sys.stderr if {code} else sys.stdout)\nsys.exit({code})\n"
        )
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program.arguments = lambda name: [
        json.loads(line) for line in (tmp_path / f"{name}.args").read_text().splitlines()
    ]
    return program


def test_arguments_become_options_of_sbatch(slurm):
    slurm("sbatch", "123;lab")
    job = jobs.submit(
        "train.sh", ["--epochs", 3], policy="edp", cap_watts=250.5, slowdown_percent=5, tag="a b",
        options={"nodes": 2, "exclusive": True, "hold": None, "time_min": 5.0},
    )  # fmt: skip
    assert repr(job) == "EnergyJob(123)"
    assert slurm.arguments("sbatch") == [
        ["--parsable", "--energy-policy=edp", "--energy-cap=250.5", "--energy-slowdown=5%",
         "--energy-tag=a b",
         "--nodes=2", "--exclusive", "--time-min=5", "train.sh", "--epochs", "3"]
    ]  # fmt: skip


def test_a_command_is_quoted_for_the_shell(slurm):
    slurm("sbatch", "7")
    jobs.submit(["echo", "a; rm -rf /", "$HOME"])
    ((_, wrap),) = slurm.arguments("sbatch")
    command = wrap.removeprefix("--wrap=")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "a; rm -rf / $HOME\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"script": "x", "options": {"array": "1-3"}}, "one job"),
        ({"script": "x", "policy": "edp", "options": {"energy_policy": "cap"}}, "given twice"),
        ({"script": []}, "empty"),
    ],
)
def test_unsupported_submissions_are_refused(call, message, slurm):
    with pytest.raises(UsageError, match=message):
        jobs.submit(**call)


def test_the_reason_of_a_refusal_is_that_of_sbatch(slurm):
    slurm("sbatch", "sbatch: error: --energy-policy: 'fast' is not a policy", 1)
    with pytest.raises(RefusedError, match="'fast' is not a policy"):
        jobs.submit("x.sh", policy="fast")


class Records:
    """Controller stand-in that returns prepared responses in order, for example no record at first.

    The last response is repeated.
    """

    def __init__(self, *answers):
        self.answers = list(answers)

    def get(self, path, query=None):
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if found is None:
            raise NotFoundError("job 12", "no record")
        return {"records": found}


def test_a_record_is_complete_or_not_returned(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    first, second = (answer(record(12, node), job_info(12, nodes=2)) for node in ("n1", "n2"))
    job = EnergyJob(12, Records(None, [first], [first, second]))
    assert job.record(30)["energy_joules"] == 35200.0
    with pytest.raises(NotFoundError, match="some nodes"):
        EnergyJob(12, Records([first])).record(0.05)
    began_s = time.monotonic()
    with pytest.raises(NotFoundError, match="no record"):
        EnergyJob(12, Records(None)).record(0.0)
    assert time.monotonic() - began_s < 30


def component_of_14(offset):
    facts = {"display_id": f"14+{offset}", "het_job_id": 14, "het_offset": offset}
    return answer(record(14 + offset), job_info(14 + offset, **facts))


@pytest.mark.parametrize("records", [[component_of_14(0)], [component_of_14(0), component_of_14(1)]])
def test_one_component_is_not_returned_for_a_heterogeneous_job(records):
    with pytest.raises(UsageError, match=r"job 14: .*frames\.jobs\('14'\).*'14\+0'"):
        EnergyJob(14, Records(records)).record(0.0)
    assert EnergyJob(15, Records([component_of_14(1)])).record(0.0)["display_id"] == "14+1"


def test_a_job_of_another_cluster_is_not_returned(monkeypatch, tmp_path):
    lab, other = (answer(record(12, cluster=name), job_info(12)) for name in ("lab", "other"))
    with pytest.raises(UsageError, match="job 12: the clusters lab and other"):
        EnergyJob(12, Records([lab, other])).record(0.0)
    assert EnergyJob(12, Records([lab, other]), "lab").record(0.0)["cluster"] == "lab"
    config = tmp_path / "energy.toml"
    config.write_text('[cluster]\nname = "lab"\n')
    monkeypatch.setenv("SENERGY_CONFIG", str(config))
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module.controller_frames, "client", lambda: Records([other], [other, lab]))
    assert EnergyJob(12).record(30)["cluster"] == "lab"


def test_waiting_ends_with_the_job_or_the_time(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    states = [{12: module_status("PENDING")}, {12: module_status("RUNNING")}, {12: module_status("FAILED")}]
    monkeypatch.setattr(module, "read_job_states", lambda ids: states.pop(0) if states else {})
    assert EnergyJob(12).wait() == "FAILED"
    with pytest.raises(NotFoundError):
        EnergyJob(12).wait()
    monkeypatch.setattr(module, "read_job_states", lambda ids: {12: module_status("RUNNING")})
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        EnergyJob(12).wait(0.02)


def module_status(state):
    from slurm_energy.slurm.job_state import JobStatus

    return JobStatus(state, 1)


def test_cancel_names_the_job(slurm):
    slurm("scancel")
    EnergyJob(12).cancel()
    assert slurm.arguments("scancel") == [["12"]]
