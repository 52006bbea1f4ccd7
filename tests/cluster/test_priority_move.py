"""Test of the migration to slurm-energy's job priority on a real cluster.

The test follows docs/priority.md and then reverses the migration. It also covers `senergy prio`, `senergy
share` and `senergy experiment`.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_driver import LabDriver

from slurm_energy.trusted_files import replace_public

PAGE = Path(__file__).parents[2] / "docs/priority.md"
OLD_WEIGHT = "PriorityWeightAge=1000"

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.lab(
        profiles=["xeon-8358"],
        slurm=["PriorityType=priority/multifactor", OLD_WEIGHT, "PriorityCalcPeriod=1"],
        energy={"priority": {"mode": "shadow", "policy": "zeus"}},
    ),
]


def until(condition: Callable[[], Any], what: Callable[[], Any]) -> Any:
    """Wait until a condition returns a true value, and return this value.

    After 90 seconds, fail with the value of `what()` as the message.
    """
    deadline = time.monotonic() + 90
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)
    return found


def asked(lab: LabDriver, *command: str) -> dict[str, Any]:
    return json.loads(lab.run("senergy", *command, "--json").stdout)


def experiment(lab: LabDriver, *options: str) -> dict[str, Any]:
    """Return the output of `senergy experiment` for the last hour instead of the time since midnight."""
    return asked(lab, "experiment", "-a", "-S", "now-1hour", *options)


def slurms_order(lab: LabDriver) -> list[int]:
    lines = lab.run("squeue", "-h", "-t", "PD", "-S", "-p,i", "-o", "%A").stdout.split()
    return [int(line) for line in lines]


def our_order(lab: LabDriver) -> list[int]:
    return [job["job_id"] for job in asked(lab, "prio")["jobs"]]


def change(lab: LabDriver, path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    replace_public(path, text.replace(old, new).encode())  # slurmd may be reading it
    if path.name == "slurm.conf":
        lab.run("scontrol", "reconfigure")
    else:
        lab.kill("senergyctld", how=signal.SIGHUP)


def commands_of(heading: str) -> str:
    """Return the commands in a section of the documentation page docs/priority.md."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```\n(.*?)```", section, re.S)
    return block


def test_shadow_then_portable_then_back(lab: LabDriver) -> None:
    running = lab.sbatch("sleep 300", "--exclusive", "-t", "10")
    until(lambda: lab.job(running)["JobState"] == "RUNNING", lambda: lab.job(running))
    long, short, middle = (lab.sbatch("true", "--exclusive", "-t", limit) for limit in ("40", "10", "20"))
    by_edp = [short, middle, long]

    until(lambda: our_order(lab) == by_edp, lambda: asked(lab, "prio"))
    assert slurms_order(lab) == [long, short, middle]
    assert lab.run("sprio", "-h", "-o", "%S").stdout.split() == ["0"] * 3
    assert "note: shadow mode" in lab.run("senergy", "prio").stdout
    until(lambda: _compared(lab) == (3, 1), lambda: asked(lab, "status"))
    page = lab.run("senergy", "prio", str(middle)).stdout
    assert f"job {middle} (wrap, root, " in page
    assert "place 2 of 3, policy zeus" in page
    assert re.search(rf"^\* {middle} .*\n  {long} ", page, re.M)

    energy, slurm = lab.layout.etc / "energy.toml", lab.layout.etc / "slurm.conf"
    change(lab, slurm, OLD_WEIGHT, "PriorityWeightAge=0")
    change(lab, energy, 'mode = "shadow"', 'mode = "portable"')
    until(lambda: slurms_order(lab) == by_edp, lambda: lab.run("sprio").stdout)
    until(lambda: _site_factors(lab) == _told_factors(lab), lambda: lab.run("sprio").stdout)
    newcomer = lab.sbatch("true", "--exclusive", "-t", "5")
    until(lambda: slurms_order(lab) == [newcomer, *by_edp], lambda: lab.run("sprio").stdout)

    change(lab, energy, 'mode = "portable"', 'mode = "off"')
    until(lambda: _is_off(lab), lambda: lab.log("senergyctld"))
    change(lab, slurm, "PriorityWeightAge=0", OLD_WEIGHT)
    lab.update("update", f"JobId={newcomer}", "Comment=new")  # slurmctld may still defer changes of a new job
    lab.run("bash", "-c", commands_of("Going back"))
    assert slurms_order(lab) == [long, short, middle, newcomer]
    assert lab.run("sprio", "-h", "-o", "%S").stdout.split() == ["0"] * 4

    change(lab, energy, 'mode = "off"', 'mode = "shadow"')
    lab.run("scancel", str(running))
    for job in (*by_edp, newcomer):
        lab.wait(job)
    report = until(lambda: _told(lab, 4), lambda: experiment(lab))
    assert report["total"]["job_energy_joules"] > 0
    assert [group["name"] for group in report["groups"]] == ["root"]
    until(lambda: _agree(lab), lambda: (asked(lab, "share"), experiment(lab)))


def _is_off(lab: LabDriver) -> bool:
    """Return whether the priority engine is off and has ended its last cycle."""
    answer = asked(lab, "prio")
    return (answer["mode"], answer["source"]) == ("off", None)


def _compared(lab: LabDriver) -> tuple[int, int]:
    """Return how many jobs of the queue senergyctld has compared with Slurm's order.

    The second result is the number of these jobs that senergyctld would move to another place.
    """
    found = asked(lab, "status")["controller"]["priority"]["rank_correlation"] or {"jobs": 0, "moved_jobs": 0}
    return found["jobs"], found["moved_jobs"]


def _site_factors(lab: LabDriver) -> dict[int, int]:
    words = lab.run("sprio", "-h", "-o", "%i %S").stdout.split()
    return dict(zip(map(int, words[::2]), map(int, words[1::2]), strict=True))


def _told_factors(lab: LabDriver) -> dict[int, int]:
    return {job["job_id"]: job["site_factor"] for job in asked(lab, "prio")["jobs"]}


def _told(lab: LabDriver, completed: int) -> dict[str, Any] | None:
    """Return the output of `senergy experiment` for all jobs, as an object.

    The result is None until all records and Slurm's data about the jobs have arrived.
    """
    report = experiment(lab, "--by", "user")
    states = report["total"]["states"]
    return report if states == {"COMPLETED": completed, "CANCELLED": 1} else None


def _agree(lab: LabDriver) -> bool:
    """Return whether `senergy share` and `senergy experiment` show the same energy of user root.

    They show the same energy as soon as the priority engine has counted all five records.
    """
    rows = asked(lab, "share")["rows"]
    used = [row["energy_joules"] for row in rows if (row["account"], row["user"]) == ("root", "root")]
    if not used or not {row["account"] for row in rows} >= {"root", "lab"}:  # no cycle since it was off
        return False
    return used[0] == pytest.approx(experiment(lab)["total"]["job_energy_joules"], rel=0.01)
