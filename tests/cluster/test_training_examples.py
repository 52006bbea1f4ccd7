"""Tests of the batch scripts in examples/training under real Slurm.

The trainings must run. For each unsuitable allocation, the output must be a single line.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_energy_lab.cluster import layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.interconnect.links import LinkSpec

pytestmark = pytest.mark.soak
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/training"
PYTHON = "/usr/bin/python3"
SMALL = ("--samples", "64", "--global-batch", "16", "--epochs", "1", "--goal", "time")
GPUS = """
import os, torch, torch.distributed
torch.cuda.device_count = lambda: {counts}[os.environ.get("SLURMD_NODENAME", "n1")]
torch.nn.Parameter.is_cuda = property(lambda parameter: True)
torch.distributed.is_nccl_available = lambda: {nccl}
"""
"""PyTorch that reports GPUs, because this machine has none. Python runs it at the start of each task."""


@contextlib.contextmanager
def training_lab(links: LinkSpec | None) -> Iterator[Lab]:
    """Context manager that starts a lab (cluster of emulated nodes) with two nodes and yields it.

    The lab is removed at the end of the `with` block.
    """
    with tempfile.TemporaryDirectory(prefix="senergy-test-", dir="/var/tmp") as folder:
        place = layout.locate_lab(Path(folder) / "lab")
        nodes = nodes_file.from_profiles(["xeon-8358", "xeon-8358"])
        try:
            yield lifecycle.up(place, LabSpec(nodes, accounting=False, cpu_share=0.9, links=links))
        finally:
            lifecycle.down(place)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if subprocess.run(
        [PYTHON, "-c", "import torch.distributed"], capture_output=True, check=False
    ).returncode:
        pytest.skip("no PyTorch: install python3-torch")
    with training_lab(LinkSpec(0.0002, 1e9)) as own:
        yield own


def submit(
    lab: Lab, folder: Path, script: str, *arguments: str, options: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Run a batch script of the examples to its end. Return its exit status and its output."""
    for name in ("balanced.py", "taskgraph.py"):
        shutil.copy(EXAMPLES / name, folder)
    output = folder / "job.out"
    argv = ["sbatch", "-W", f"--output={output}", *options, str(EXAMPLES / script), *arguments]
    path = f"{folder}:{ROOT}"
    environment = {**os.environ, **lab.environment(), "PYTHON": PYTHON, "PYTHONPATH": path}
    done = subprocess.run(argv, env=environment, cwd=folder, capture_output=True, timeout=240, check=False)
    return done.returncode, output.read_text()


def test_balanced_training_runs(lab: Lab, tmp_path: Path) -> None:
    status, text = submit(lab, tmp_path, "balanced.sbatch", *SMALL, options=("--nodes=2",))
    assert status == 0, text
    (epoch,) = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    assert sum(epoch["samples"]) == 16


def test_the_taskgraph_trainer_runs(lab: Lab, tmp_path: Path) -> None:
    status, text = submit(lab, tmp_path, "taskgraph.sbatch")
    assert status == 0, text
    assert "loss " in text


@pytest.mark.parametrize(
    ("nodes", "torch", "status", "line"),
    [
        (1, "", 2, "all ranks are on one node (n1): there is nothing to balance: request --nodes=2 or more"),
        (
            2,
            GPUS.format(counts={"n1": 2, "n2": 1}, nccl=True),
            2,
            "unequal numbers of ranks and GPUs (n1: 1 ranks, 2 GPUs, n2: 1 ranks, 1 GPUs)",
        ),
        (
            2,
            GPUS.format(counts={"n1": 1, "n2": 1}, nccl=False),
            4,
            "backend nccl: PyTorch on n1 lacks it: install a PyTorch that has it on every node",
        ),
    ],
)
def test_a_bad_allocation_gives_one_line(
    lab: Lab, tmp_path: Path, nodes: int, torch: str, status: int, line: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif 'SLURM_STEP_ID' in os.environ and 'SLURM_PROCID' in os.environ:\n"
        + "".join(f"    {text}\n" for text in torch.splitlines() if text)
        + "    pass\n"
    )
    options = (f"--nodes={nodes}", "--nodelist=n1" if nodes == 1 else "--nodelist=n1,n2")
    result, text = submit(lab, tmp_path, "balanced.sbatch", *SMALL, options=options)
    assert result != 0
    errors = [own for own in text.splitlines() if own.startswith("balanced: error: ")]
    assert len(errors) == 1, text
    assert errors[0].startswith(f"balanced: error: {line}")
    assert f"Exited with exit code {status}" in text
    assert "Traceback" not in text


def test_the_taskgraph_trainer_shares_batches_among_nodes(tmp_path: Path) -> None:
    options = ("--nodes=2", "--ntasks=2", "--exclusive")
    with training_lab(
        None
    ) as own:  # PMIx connects to the slurmstepd of the node, outside an emulated network
        status, text = submit(own, tmp_path, "taskgraph.sbatch", "--distributed", options=options)
    assert status == 0, text
    assert "processes 2" in text
