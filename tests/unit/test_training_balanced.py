"""Tests of balanced training in real processes.

The trained model must equal the model that a single process trains. Further tests cover pauses, lost ranks
and invalid allocations.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("balanced_program.py")
PYTHONS = (str(ROOT / ".venv/bin/python"), "/usr/bin/python3")
_ports = itertools.count(21000 + os.getpid() % 4000)


@pytest.fixture(scope="module")
def python():
    for name in filter(os.path.exists, PYTHONS):
        check = subprocess.run([name, "-c", "import torch.distributed"], capture_output=True, check=False)
        if check.returncode == 0:
            return name
    pytest.skip("no Python with PyTorch: install python3-torch")


def start(python, kind, sample_s, options, ranks=3, environment=None):
    """Start the ranks of a program as srun would, one per node."""
    port = str(next(_ports))
    processes = []
    for rank in range(ranks):
        own = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(ranks), "SLURMD_NODENAME": f"n{rank}"}
        own |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
        }
        argv = [python, str(PROGRAM), kind, str(sample_s[rank]), json.dumps(options)]
        processes.append(
            subprocess.Popen(
                argv, env={**os.environ, **own}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    return processes


def finish(processes):
    outputs = [process.communicate(timeout=120) for process in processes]
    for process, (_, error) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, error
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.fixture(scope="module")
def expected(python):
    return finish(start(python, "ALONE", [0.0], {}, ranks=1))[0]["weights"]


def assert_equal(results, expected):
    for result in results:
        assert result["weights"] == pytest.approx(expected, rel=0, abs=1e-10)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_with_changing_shares_equals_one_process(python, expected, workers):
    results = finish(start(python, "BALANCED", [0.002, 0.004, 0.008], {"workers": workers}))
    assert_equal(results, expected)
    shares = results[0]["shares"]
    assert shares[0] == [7, 7, 6]
    assert shares[-1][0] > shares[-1][1] > shares[-1][2] > 0


def test_a_rank_that_pauses_gets_the_trained_model(python, expected):
    results = finish(start(python, "BALANCED", [0.001, 0.001, 0.2], {}))
    assert_equal(results, expected)
    assert results[0]["shares"][-1][2] == 0
    assert results[2]["steps"] < results[0]["steps"]


def test_a_lost_rank_costs_the_work_since_the_checkpoint(python, expected, tmp_path):
    options = {"checkpoint": str(tmp_path / "run.ckpt"), "checkpoint_every_s": 0.0, "lost_after_s": 5}
    processes = start(python, "BALANCED", [0.001, 0.001, 0.001], {**options, "lose_at": 20})
    assert [process.wait(timeout=60) != 0 for process in processes] == [True] * 3
    for process in processes:
        process.communicate()
    results = finish(start(python, "BALANCED", [0.001, 0.001], options, ranks=2))
    assert_equal(results, expected)
    # 12 steps an epoch; 20 were done, of which 19 are certain to be in the checkpoint.
    assert results[0]["epochs"] == [1, 2]
    assert results[0]["steps"] <= 36 - 18


@pytest.mark.parametrize(
    ("environment", "options", "line"),
    [
        ({"SLURMD_NODENAME": "n1"}, {}, "all ranks are on one node (n1)"),
        ({}, {"goal": "money"}, "goal 'money': unknown: one of time, energy, edp"),
    ],
)
def test_a_bad_allocation_gives_one_line(python, environment, options, line):
    processes = start(python, "BALANCED", [0.0] * 2, options, 2, environment)
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    errors = "".join(error for _, error in outputs)
    assert errors.count("\n") == 1
    assert errors.startswith(f"balanced: error: {line}")


@pytest.mark.parametrize("mode", [0o666, 0o660])
def test_a_checkpoint_that_other_users_can_write_runs_no_code(python, tmp_path, mode):
    path, mark = tmp_path / "run.ckpt", tmp_path / "mark"
    code = f"""
import os, torch
from pathlib import Path
from slurm_energy.training.checkpoint import TrainingCheckpoint
class Code:
    def __reduce__(self):
        return os.mkdir, ({str(mark)!r},)
path = Path({str(path)!r})
torch.save({{"format": 1, "code": Code()}}, path)
path.chmod({mode})
TrainingCheckpoint(path, 1.0).read()
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert f"checkpoint {path}: can be written by other users: chmod go-w" in done.stderr
    assert not mark.exists()
