"""Tests of benchmarks/balanced_training.py.

The benchmark trains on one, two and three nodes. The tests check the network latency from which three
nodes are no longer faster than two, and that stored runs are not repeated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_energy_lab.interconnect.links import LinkSpec

MODULES = ("balanced_lab", "balanced_network", "claims")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import balanced_lab
    import balanced_network

    yield SimpleNamespace(lab=balanced_lab, network=balanced_network)
    for name in MODULES:
        sys.modules.pop(name, None)


def table(*three_nodes_s: float) -> list[tuple[float, dict[int, float]]]:
    """Return example results of the benchmark: run times on 1, 2 and 3 nodes at rising latencies.

    The network latency rises from 0 in steps of 10 ms. The arguments are the run times on three nodes in
    seconds, one for each latency.
    """
    return [(0.01 * number, {1: 1.2, 2: 1.0, 3: seconds}) for number, seconds in enumerate(three_nodes_s)]


@pytest.mark.parametrize(
    ("three_nodes_s", "threshold_s"),
    [
        ((0.6, 0.8, 1.2), 0.015),  # between two measured latencies
        ((0.6, 0.7, 0.8), 0.04),  # beyond them
        ((1.1, 1.2), None),  # fewer nodes are always better
        ((0.6, 0.6), None),  # the latency has no effect
        ((0.6, 0.6001), None),  # farther than 500 ms
    ],
)
def test_the_threshold_is_where_three_nodes_lose_their_advantage(
    benchmark: Any, three_nodes_s: tuple[float, ...], threshold_s: float | None
) -> None:
    assert benchmark.network.threshold(table(*three_nodes_s)) == (
        None if threshold_s is None else pytest.approx(threshold_s)
    )


def test_finished_runs_are_not_repeated(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labs: list[tuple[Any, ...]] = []

    class Lab:
        def __init__(self, *arguments: Any) -> None:
            labs.append(arguments)

        def __enter__(self) -> Lab:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(benchmark.lab, "training_lab", Lab)
    path, links, speeds = tmp_path / "runs.jsonl", LinkSpec(0.01, 1e9), (1.0, 0.5)
    row = {"seconds": 2.0, "joules": 3.0, "samples": [1, 2]}
    for _ in range(2):
        with benchmark.lab.TrainingRuns(path, "python3") as runs:
            assert runs.row("equal", links, speeds, lambda lab: row)["seconds"] == 2.0
        path.write_text(path.read_text() + '{"key": "cut o')
    assert len(labs) == 1
    for _ in range(2):
        with benchmark.lab.TrainingRuns(path, "python3") as runs:
            runs.row("equal", LinkSpec(0.02, 1e9), speeds, lambda lab: row)
    assert len(labs) == 2
