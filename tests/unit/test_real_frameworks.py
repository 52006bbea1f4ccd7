"""Tests of the examples in docs/step-recorder.md with real training frameworks.

The frameworks are PyTorch, Lightning and transformers. They may be installed for the interpreter of the
tests, for Debian's interpreter (python3-torch), or for the interpreter that the environment variable
TORCH_PYTHON names.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "step-recorder.md"
REPORT = """
from slurm_energy.profiling import step_recorder as _module
import json as _json
_steps = _module.recorder.result()
print("RESULT", _json.dumps({
    "counts": {name: phase.count for name, phase in _steps.phases.items()},
    "samples": _steps.samples, "hints": dict(_steps.hints),
}))
"""
EVERY_STEP = "from slurm_energy.profiling import torch_phases as _t\n_t._TIMED_EVERY_NS = 0\n"
COMPILED = """
import copy, io
import slurm_energy
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(inputs):
    return model(inputs).sum()


compiled = torch.compile(step, backend="eager", fullgraph=True)
inputs = torch.randn(3, 4)
for _ in slurm_energy.watch(range(5), model, optimizer):
    compiled(inputs).backward()
    optimizer.step()
outer = torch.compile(model, backend="eager", fullgraph=True)
for _ in slurm_energy.watch(range(5), outer, optimizer):
    outer(inputs).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(copy.deepcopy(model), file)
assert b"slurm_energy" not in file.getvalue()
"""
EPOCHS = """
import time

import slurm_energy
import torch
from slurm_energy.profiling import worker_trial
from torch.utils.data import DataLoader, Dataset

worker_trial.os.sched_getaffinity = lambda pid: set(range(8))


class Slow(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.randn(4), index


loader = DataLoader(Slow(), batch_size=8, num_workers=START)
used = []
for _ in range(3):
    used.append(loader.num_workers)
    assert len(list(slurm_energy.watch(loader, max_workers=4))) == 30
assert used == [START, 4, 4], used
"""
CLOSURE = """
import slurm_energy
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1)
inputs = torch.randn(3, 4)


def closure():
    optimizer.zero_grad()
    loss = model(inputs).square().sum()
    loss.backward()
    return loss


for _ in slurm_energy.watch(range(4), model, [optimizer, schedule.optimizer]):
    optimizer.step(closure)
    schedule.optimizer.step()
    schedule.step()
assert type(optimizer).step is not None and "step" not in vars(optimizer)
"""

READY = """
import time

import slurm_energy
import torch
from slurm_energy.profiling import phases
from torch.utils.data import DataLoader, Dataset

phases.PROBE_PERIOD_NS = 0


class Prepared(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        time.sleep(LOADING)
        return torch.zeros(4)


for _ in slurm_energy.watch(DataLoader(Prepared(), batch_size=4, num_workers=WORKERS)):
    time.sleep(COMPUTING)
"""


def example(number: int) -> str:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    return blocks[number]


@functools.cache
def python_with(module: str) -> str:
    """Return an interpreter that has a module, or skip the test."""
    for python in (os.environ.get("TORCH_PYTHON"), sys.executable, "/usr/bin/python3"):
        if python and Path(python).exists():
            check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
            if subprocess.run([python, "-c", check], check=False).returncode == 0:
                return python
    pytest.skip(f"no interpreter has {module} (Debian: python3-torch; others: TORCH_PYTHON)")


def run(code: str, module: str, directory: Path, every_step: bool = True) -> dict[str, Any]:
    """Run a program that uses a training framework, and return what slurm-energy recorded of it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SENERGY_EVENTS_DIR": str(directory)}
    program = (EVERY_STEP if every_step else "") + code + REPORT
    done = subprocess.run(
        [python_with(module), "-c", program],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "slurm_energy" not in done.stderr, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


def test_the_example_for_any_program(tmp_path: Path) -> None:
    result = run(example(3), "json", tmp_path)
    assert result["counts"] == {"communication": 100, "data": 100, "step": 100, "checkpoint": 1}


@pytest.mark.slow
def test_the_example_for_pytorch(tmp_path: Path) -> None:
    result = run(example(0), "torch", tmp_path)
    names = ("data", "copy", "forward", "backward", "optimizer", "step")
    assert result["counts"] == dict.fromkeys(names, 30) | {"evaluation": 3, "checkpoint": 3}
    assert result["samples"] == 3 * 640
    assert result["hints"]["batch_size"] == 64


@pytest.mark.soak
def test_short_steps_are_a_sample_with_the_right_totals(tmp_path: Path) -> None:
    result = run(example(0), "torch", tmp_path, every_step=False)["counts"]
    assert result["step"] == 30
    assert 0 < result["forward"] == result["backward"] <= 30


@pytest.mark.soak
@pytest.mark.parametrize("code", [COMPILED, CLOSURE])
def test_compiled_models_and_closures(code: str, tmp_path: Path) -> None:
    if code is COMPILED:
        check = "import sys, torch; sys.exit(not hasattr(torch, 'compile'))"
        if subprocess.run([python_with("torch"), "-c", check], check=False).returncode:
            pytest.skip("torch.compile needs PyTorch 2")
    counts = run(code, "torch", tmp_path)["counts"]
    if code is COMPILED:
        # A hook inside the compiled function records nothing and breaks nothing.
        assert (counts["step"], counts["optimizer"], counts["forward"]) == (10, 10, 5)
    else:
        assert counts["optimizer"] == 8
        assert counts["forward"] == counts["backward"] > 4


@pytest.mark.soak
@pytest.mark.parametrize("start", [0, 1])
def test_loader_gets_further_processes_between_epochs(start: int, tmp_path: Path) -> None:
    hints = run(EPOCHS.replace("START", str(start)), "torch", tmp_path)["hints"]
    assert (hints["num_workers"], hints["worker_trial"]) == (4, f"kept {start} -> 4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loading", "computing", "workers", "is_known"),
    [("0", "0.05", "2", True), ("0.02", "0", "1", False), ("0", "0.01", "0", False)],
)
def test_time_to_receive_batches_that_were_ready(
    loading: str, computing: str, workers: str, is_known: bool, tmp_path: Path
) -> None:
    code = READY.replace("LOADING", loading).replace("COMPUTING", computing).replace("WORKERS", workers)
    assert ("ready_batch_s" in run(code, "torch", tmp_path)["hints"]) == is_known


@pytest.mark.soak
def test_the_example_for_lightning(tmp_path: Path) -> None:
    counts = run(example(1), "lightning", tmp_path)["counts"]
    names = ("data", "copy", "forward", "backward", "optimizer", "step")
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 30)
    assert counts["checkpoint"] >= 1


@pytest.mark.soak
def test_the_example_for_hugging_face(tmp_path: Path) -> None:
    counts = run(example(2), "transformers", tmp_path)["counts"]
    names = ("data", "forward", "backward", "optimizer", "step")
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 30)
    assert (counts["evaluation"], counts["checkpoint"]) == (3, 3)
