"""Tests of the demonstration `make demo`: its jobs, its summary, and its power budget."""

import json
import signal
from types import SimpleNamespace

import pytest

from slurm_energy import config
from slurm_energy.errors import ConfigError
from slurm_energy_lab import demo_budget
from slurm_energy_lab.cluster.configuration import toml_document
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.nodes_file import DEFAULT_PROFILES
from slurm_energy_lab.demo import JOBS, TITLE, TUNED_JOB, demo_nodes, explain
from slurm_energy_lab.model import load_profile

CHOSEN = {"gpu_limit_watts": 300.0}
UNTUNED = {"time_ratio": 1.0, "power_ratio": 1.0, "point": {}}
TUNED = {"time_ratio": 1.04, "power_ratio": 0.82, "point": CHOSEN}


def jobs(tuning):
    result = [
        {"name": job.name, "elapsed_s": 10.0, "energy_joules": 1e4, "nodes": [{"tuning": None}]}
        for job in JOBS
    ]
    result[-1]["nodes"] = [{"tuning": tuning}]
    return result


def test_every_job_runs_on_a_node_of_the_demonstration():
    nodes = {node.name: node.profile for node in demo_nodes()}
    assert {job.node for job in JOBS} == set(nodes)
    assert nodes[TUNED_JOB.node] not in DEFAULT_PROFILES
    assert load_profile(nodes[TUNED_JOB.node]).gpu_count == TUNED_JOB.gpus
    assert TITLE.startswith("Thirteen jobs, five kinds of nodes, five energy policies")
    assert (len(JOBS), len(nodes), len({job.policy for job in JOBS})) == (13, 5, 5)


@pytest.mark.parametrize(
    ("tuning", "text"),
    [
        ({"chosen": CHOSEN, "probes": 3, "points": [UNTUNED, TUNED]}, "1.04x the time, \u221215 % energy"),
        ({"chosen": {}, "probes": 3, "points": [UNTUNED]}, "no better setting was found in 3 probes"),
        (None, "no better setting was found in 0 probes"),
    ],
)
def test_the_summary_tells_what_tuning_found(tuning, text):
    lines = explain(jobs(tuning))
    assert len(lines) == 6
    assert text in lines[-1]


def test_the_jobs_under_the_budget_run_on_nodes_of_the_demonstration():
    nodes = {node.name: load_profile(node.profile) for node in demo_nodes()}
    assert [nodes[job.node].gpu_count for job in demo_budget.JOBS] == [job.gpus for job in demo_budget.JOBS]
    names = [job.name for job in (*JOBS, *demo_budget.JOBS)]
    assert len(names) == len(set(names))


class LoginNode:
    """A fake login node of the lab cluster.

    Its fake controller executes each command at once, so that the next response shows the effect.
    """

    def __init__(self):
        self.mode, self.limit, self.jobs, self.commands = "observe", 20e3, [], []

    def __call__(self, *command, timeout_s=60):
        self.commands.append(command)
        name = command[0] if command[0] != "senergy" else command[1]
        if name == "sbatch":
            self.jobs.append(20 + len(self.jobs))
            return f"{self.jobs[-1]}\n"
        if name == "acct":
            job = {"name": "x", "energy": {"missing_nodes": 0}}
            return json.dumps({"jobs": [job for _ in self.jobs]})
        if name == "squeue":
            return ""
        if command[2:3] == ("set",):
            self.limit = 20e3 if "--configured" in command else float(command[4].removesuffix("W"))
        if command[2:3] == ("history",) and "--json" in command:
            return json.dumps({"series": [{"over_s": [0.0, 2.25]}]})
        row = {"name": "site", "measured_watts": min(10e3, self.limit - 100), "floor_watts": 4e3}
        state = {"mode": self.mode, "decided_unix_s": 1.0, "budgets": [row]}
        return json.dumps(state | {"jobs": [{"job_id": job} for job in self.jobs]})


def test_the_budget_step_lowers_and_raises_the_limit(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    node, said = LoginNode(), []

    def enforce():
        node.mode = "enforce"

    ids, line = demo_budget.run_budget_step(node, enforce, said.append)
    changes = [command[4] for command in node.commands if command[1:3] == ("budget", "set")]
    assert (ids, changes, node.limit) == ([20, 21, 22], ["7000W", "--configured"], 20e3)
    assert "from 10.0 kW to 6.9 kW and was above the limit for 2.2 s" in line
    assert any(text.startswith("\n$ senergy budget explain 20") for text in said)


def test_the_budget_is_only_observed_at_first():
    parsed = config.parse(toml_document(demo_budget.OBSERVED))
    assert (parsed.budget.mode, parsed.budgets[0].name) == ("observe", demo_budget.BUDGET)


def test_the_lab_changes_energy_toml_and_lets_the_daemons_read_it_again(tmp_path, monkeypatch):
    path = tmp_path / "energy.toml"
    path.write_text(toml_document(demo_budget.OBSERVED))
    lab = Lab.__new__(Lab)
    lab.layout = SimpleNamespace(energy_toml=path)
    lab.record = SimpleNamespace(spec=SimpleNamespace(nodes=[SimpleNamespace(name="n1")]))
    pids = {("senergyctld", None): 11, ("senergyd", "n1"): None}
    monkeypatch.setattr(lab, "daemon_pid", lambda daemon, node=None: pids[daemon, node])
    signals = []
    monkeypatch.setattr("os.kill", lambda pid, number: signals.append((pid, number)))
    demo_budget.enforce(lab)
    assert config.parse(path.read_text()).budget.mode == "enforce"
    assert signals == [(11, signal.SIGHUP)]
    before = path.read_text()
    with pytest.raises(ConfigError):
        lab.set_energy({"budget": {"mode": "sometimes"}})
    assert path.read_text() == before and len(signals) == 1
