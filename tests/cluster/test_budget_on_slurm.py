"""Test of a power budget over two nodes with real daemons.

The power must follow the budget, also when the budget is changed, and while daemons are killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from lab_driver import LabDriver

from slurm_energy_lab.reading_thread import ReadingThread

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.soak,
    pytest.mark.lab(
        profiles=["epyc-7513-a100"] * 2,
        overrides={"cpu.cores_per_package": 4},
        energy={
            "budget": {"mode": "enforce", "admission": "off", "lease_s": 15.0},
            "budgets": [{"name": "site", "cluster": True, "watts": 3000.0}],
        },
    ),
]
PERIOD_S = 5.0
READ_S = 0.1


def budget(lab: LabDriver, *options: str) -> Any:
    return json.loads(lab.run("senergy", "budget", *options, "--json").stdout)


def power(lab: LabDriver) -> float:
    return float(sum(lab.truth(node)["power_watts"]["node"] for node in lab.nodes))


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)


def test_the_power_of_two_nodes_follows_the_budget(lab: LabDriver) -> None:
    def all_report() -> bool:
        nodes = budget(lab, "show", "--nodes")["nodes"]
        return len(nodes) == 2 and all(node["state"] == "reporting" for node in nodes)

    wait_for(all_report, "the agents do not report")
    options = ("-N2", "--ntasks-per-node=1", "--exclusive", "--gpus-per-node=4")
    job = lab.sbatch("srun senergy lab run gemm --gpu --seconds 600", *options)
    wait_for(lambda: power(lab) > 2200.0, "the job does not get the power of the budget")
    assert power(lab) <= 3000.0
    assert budget(lab, "set", "site", "1900", "--reason", "test")["previous_watts"] == 3000.0
    wait_for(lambda: power(lab) <= 1900.0, "the power does not follow the lower limit")
    explained = budget(lab, "explain", str(job))
    assert explained["budget"] == "site" and explained["state"] == "running"
    with ReadingThread(lambda: power(lab), READ_S) as watch:
        lab.kill("senergyctld")
        lab.kill("senergyd", "n2")
        time.sleep(PERIOD_S)
        lab.lab.start_daemon("senergyctld")
        time.sleep(PERIOD_S)
        lab.lab.start_daemon("senergyd", "n2")
        wait_for(all_report, "the agents do not report to the restarted controller")
        time.sleep(PERIOD_S)
    assert max(watch.values) <= 1900.0
    assert lab.run("senergy", "budget", "set", "site", "100", check=False).returncode == 2
    assert budget(lab, "set", "site", "--configured")["limit_watts"] == 3000.0
    wait_for(lambda: power(lab) > 2200.0, "the power does not return")
    lab.run("scancel", str(job))
    lab.wait(job)
    changes = budget(lab, "history")["changes"]
    assert [change["by"] for change in changes if change["kind"] in ("set", "clear")] == ["root", "root"]
