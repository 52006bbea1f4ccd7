"""Tests of the restart of a training program on the remaining nodes after a node was lost."""

from __future__ import annotations

import pytest

from slurm_energy.errors import UnavailableError
from slurm_energy.training.restart import RestartLoop


class Cluster:
    """Stand-in for the cluster on which a training program runs.

    The test defines which nodes respond, and the exit code of each run of the program.
    """

    def __init__(self, codes, checkpoint, answering=("n1", "n2", "n3"), writes=()):
        self.codes, self.checkpoint, self.answering, self.writes = list(codes), checkpoint, answering, writes
        self.runs = []

    def run(self, argv, environment, timeout_s):
        nodes = next(entry for entry in argv if entry.startswith("--nodelist=")).partition("=")[2].split(",")
        if timeout_s is not None:
            return 0 if set(nodes) <= set(self.answering) else 124
        self.runs.append((nodes, environment["SENERGY_TRAINING_RESTARTS"], argv[-2:]))
        if len(self.runs) in self.writes:
            self.checkpoint.write_text(str(len(self.runs)))
        return self.codes.pop(0)


def complete(codes, tmp_path, **options):
    cluster = Cluster(codes, tmp_path / "run.ckpt", **options)
    loop = RestartLoop(
        ["python3", "t.py"],
        ["n1", "n2", "n3"],
        cluster.checkpoint,
        run=cluster.run,
        environment={"SLURM_NNODES": "3"},
    )
    try:
        return loop.complete(), cluster.runs
    except UnavailableError as error:
        return str(error), cluster.runs


def test_the_program_continues_without_the_lost_node(tmp_path, capsys):
    code, runs = complete([143, 0], tmp_path, answering=("n1", "n3"))
    assert code == 0
    assert [(nodes, restarts) for nodes, restarts, _ in runs] == [
        (["n1", "n2", "n3"], "0"),
        (["n1", "n3"], "1"),
    ]
    assert capsys.readouterr().err == "restart: lost n2; continues on n1 n3\n"


@pytest.mark.parametrize("code", [0, 2, 3])
def test_success_and_wrong_usage_end_at_once(tmp_path, code):
    assert complete([code], tmp_path)[0] == code


def test_a_program_that_fails_without_progress_is_not_repeated(tmp_path):
    code, runs = complete([1, 1], tmp_path)
    assert "ended with exit code 1" in code
    assert len(runs) == 1


def test_a_program_that_fails_after_a_checkpoint_is_repeated(tmp_path):
    code, runs = complete([1, 1], tmp_path, writes=(1,))
    assert "ended with exit code 1" in code
    assert len(runs) == 2


def test_no_remaining_node_is_an_error(tmp_path):
    assert "no node of the job answers" in complete([1], tmp_path, answering=())[0]
