"""The summary of the demonstration."""

import pytest

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
