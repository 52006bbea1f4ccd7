"""Tests of commands of slurm-energy on a real Slurm.

The tests cover jobs without energy records, misspelt names, the formats of sprio, and the shadow mode, in
which the queue is ranked but not changed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from lab_driver import LabDriver

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.lab(
        profiles=["xeon-8358"],
        slurm=["PriorityType=priority/multifactor", "PriorityWeightAge=1000", "PriorityCalcPeriod=1"],
        energy={
            "priority": {"mode": "shadow", "policy": "zeus"},
            "controller": {"admin_comment": True},
            "carbon": {"provider": "constant", "g_per_kwh": 360.0},
        },
    ),
]


def senergy(lab: LabDriver, *arguments: str) -> subprocess.CompletedProcess[str]:
    return lab.run("senergy", *arguments, check=False)


def until(condition: Callable[[], object], what: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)


@pytest.fixture
def queued(lab: LabDriver) -> tuple[int, list[int]]:
    """Yield a running job that uses the only node, and the jobs that wait for this node.

    senergyctld has already ranked the waiting jobs.
    """
    running = lab.sbatch("sleep 300", "--exclusive", "-t", "10")
    until(lambda: lab.job(running)["JobState"] == "RUNNING")
    waiting = [
        lab.sbatch("true", "--exclusive", "-t", limit, "--energy-policy=powersave") for limit in ("40", "10")
    ]
    until(lambda: len(json.loads(lab.run("senergy", "prio", "--json").stdout)["jobs"]) >= 2)
    yield running, waiting
    lab.run("scancel", *map(str, (running, *waiting)))


def test_a_job_without_a_record_is_shown_with_slurms_data(
    lab: LabDriver, queued: tuple[int, list[int]]
) -> None:
    running, (pending, _) = queued
    for job, said in (
        (running, "it has not ended (RUNNING)"),
        (pending, "it has not started (PENDING)"),
        (99999, "it is unknown to Slurm and has no energy record"),
    ):
        done = senergy(lab, "job", str(job))
        assert done.returncode == 6, done
        assert done.stderr.startswith(f"senergy: error: job {job}: {said}"), done.stderr
        assert done.stderr.count("\n") == 1


def test_names_that_slurm_does_not_know_are_refused(lab: LabDriver, queued: tuple[int, list[int]]) -> None:
    partition = lab.run("sinfo", "-h", "-o", "%R").stdout.split()[0]
    for command, option in ((["experiment", "-a"], "-r"), (["prio"], "-p")):
        assert senergy(lab, *command, option, partition).returncode == 0
        done = senergy(lab, *command, option, partition + "x")
        assert (done.returncode, done.stdout) == (6, ""), done
        assert f"partition {partition}x: neither Slurm nor an energy record knows it" in done.stderr
        assert f"did you mean {partition}?" in done.stderr


@pytest.mark.parametrize("form", ["%.15i %9r %.8u %.10Y", "%i %r %u %Y", "%15i %.9r", "%10u %.6N"])
def test_formats_have_the_meaning_of_sprio(lab: LabDriver, queued: tuple[int, list[int]], form: str) -> None:
    def rows(*command: str) -> list[str]:
        return sorted(line.rstrip() for line in lab.run(*command, "-h", "-o", form).stdout.splitlines())

    # Priorities grow with age.
    until(lambda: rows("sprio") == rows("senergy", "prio"), lambda: (rows("sprio"), rows("senergy", "prio")))


def test_shadow_mode_sets_nothing(lab: LabDriver, queued: tuple[int, list[int]]) -> None:
    _, waiting = queued
    for job in waiting:
        text = lab.run("scontrol", "show", "job", str(job)).stdout
        assert "AdminComment" not in text
        assert "energy-flags" not in text


def test_doctor_waits_for_the_nodes_and_measures_a_job(lab: LabDriver) -> None:
    command = ("senergy", "doctor", "--cluster", "--wait=240", "--json")
    done = lab.run(*command, check=False, timeout=420)
    report = json.loads(done.stdout)
    assert (done.returncode, report["healthy"], report["awaited"]) == (0, True, ""), done
    checks = {check["name"]: check for check in report["checks"]}
    assert (checks["agent"]["nodes"], checks["SPANK plugin"]["state"]) == ("n1", "ok")
    assert re.fullmatch(r"the record of job \d+ arrived, [\d.]+ J", checks["measured job"]["finding"])


def test_python_submits_a_job_and_gets_its_record(lab: LabDriver) -> None:
    code = """
from slurm_energy import frames, jobs
job = jobs.submit(["sleep", "1"], policy="powersave", tag="from-python", options={"exclusive": True})
assert job.wait(300) == "COMPLETED", job.state
record = job.record(300)
assert (record["policy"], record["tag"], record["state"]) == ("powersave", "from-python", "COMPLETED")
assert record["energy_joules"] > 0
frame = frames.jobs(job.job_id)
assert frame.energy_joules.tolist() == [record["energy_joules"]]
assert len(frames.steps(job.job_id)) >= 1 and len(job.trace()) >= 1
try:
    jobs.submit(["true"], policy="fast")
except jobs.RefusedError as error:
    print(error)
"""
    done = lab.run(sys.executable, "-c", code, check=False, timeout=280)
    assert done.returncode == 0 and "fast" in done.stdout, done


@pytest.mark.timeout(600)
def test_a_line_about_energy_ends_the_output_of_batch_jobs(lab: LabDriver) -> None:
    root = lab.layout.root
    texts = _outputs(
        lab, {"off": ((), {"SENERGY_OUTPUT_LINE": "0"}), "discarded": (("--error=/dev/null",), {})}
    )
    lines: list[str] = []
    errors: list[str] = []
    # A job waits 50 ms for the line at most. On a busy machine, some jobs therefore end without it.
    for first in range(0, 12, 3):
        if lines and any(errors):
            break
        on, apart = ([f"{kind}{number}" for number in range(first, first + 3)] for kind in ("on", "apart"))
        texts |= _outputs(lab, dict.fromkeys(on, ((), {})) | {n: ((f"--error={n}.err",), {}) for n in apart})
        assert all(texts[name].startswith("first\nlast\n") for name in on)
        lines += [line for name in on for line in texts[name].splitlines()[2:]]
        errors += [(root / f"{name}.err").read_text() for name in apart]
    assert {text for name, text in texts.items() if not name.startswith("on")} == {"first\nlast\n"}
    assert lines and any(errors)
    for line in lines:
        energy, _, footprint = line.partition("; ")  # emissions are known after the first live report
        assert re.fullmatch(r"senergy: [\d.]+ [kM]?J in 00:00:\d\d on n1, mean [\d.]+ k?W", energy), line
        assert not footprint or re.fullmatch(r"[\d.]+ m?g CO2e \(constant \(configured\)\)", footprint), line
    assert all(not text or text.startswith("senergy: ") for text in errors)


def _outputs(lab: LabDriver, cases: dict[str, tuple[tuple[str, ...], dict[str, str]]]) -> dict[str, str]:
    """Run a job for each case and return the outputs of the jobs.

    A case has a name, further options of sbatch, and environment variables.
    """
    root, jobs = lab.layout.root, []
    for name, (options, environment) in cases.items():
        words = ("--exclusive", f"--output={root / name}.out", f"--chdir={root}", *options)
        jobs.append(lab.sbatch("echo first; srun true; sleep 1; echo last", *words, env=environment))
    for job in jobs:
        lab.wait(job)
    return {name: (root / f"{name}.out").read_text() for name in cases}


def test_the_energy_of_ended_jobs_is_in_their_admincomment_unless_another_tool_wrote_it(
    lab: LabDriver,
) -> None:
    own = lab.sbatch("sleep 2", "--exclusive", "--energy-policy=powersave")
    other = lab.sbatch("sleep 2", "--exclusive")
    lab.update("update", f"jobid={other}", "admincomment=JS1:abc")
    for job in (own, other):
        lab.wait(job)

    def comment(job: int) -> str:
        return lab.run("sacct", "-n", "-X", "-P", "-j", str(job), "-o", "AdminComment").stdout.strip()

    until(lambda: "slurm-energy" in comment(own), lambda: comment(own))
    figures = json.loads(comment(own).replace("`", '"'))["slurm-energy"]
    assert figures["v"] == 1 and figures["policy"] == "powersave" and figures["nodes"] == 1
    joules = json.loads(lab.run("senergy", "acct", "-j", str(own), "--json").stdout)["jobs"][0]
    assert figures["energy_joules"] == pytest.approx(joules["energy"]["energy_joules"], rel=1e-4)
    assert figures["co2e_grams"] == pytest.approx(figures["energy_joules"] / 3.6e6 * 360.0, rel=1e-4)
    assert comment(other) == "JS1:abc"
