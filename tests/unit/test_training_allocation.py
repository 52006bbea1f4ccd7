"""Tests of the checks of the Slurm allocation at the start of a balanced training program.

A balanced training program divides its work among nodes of unequal speed. It reads the rank of each
process from the environment. It refuses an allocation that it cannot use, for example one with all
ranks on the same node.
"""

from __future__ import annotations

import pytest

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.training.allocation import RankFacts, check, first_host, placement
from slurm_energy.training.options import BalancedOptions

STEP = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "gpu[03-04,9]"}


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu[003-009,12],x", "gpu003"), ("n1", "n1"), ("n1,n2", "n1"), ("a[1-2]-ib", "a1-ib"), ("", "")],
)
def test_the_first_host_of_a_list(nodes, host):
    assert first_host(nodes) == host


def test_ranks_come_from_srun_or_torchrun():
    own = placement(STEP)
    assert (own.rank, own.ranks, own.address, own.is_restart) == (2, 3, "gpu03", False)
    assert own.port == placement(STEP | {"SLURM_PROCID": "0"}).port
    assert placement(STEP | {"SENERGY_TRAINING_RESTARTS": "1"}).is_restart
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n5", "MASTER_PORT": "4000"}
    assert placement(torchrun).address == "n5"
    with pytest.raises(UsageError, match="start it with srun"):
        placement({})


def facts(*nodes, gpus=0, uses_gpu=False, backend=""):
    return [RankFacts(node, gpus, uses_gpu, backend) for node in nodes]


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (facts("n1", "n1"), "all ranks are on one node .n1.: there is nothing to balance: request --nodes=2"),
        (facts("n1", "n2", uses_gpu=True, gpus=1, backend="nccl"), "backend nccl: PyTorch on n1 lacks it"),
        (
            facts("n1", "n1", uses_gpu=True, gpus=2) + facts("n2", "n2", uses_gpu=True, gpus=1),
            "unequal numbers of ranks and GPUs .n1: 2 ranks, 2 GPUs, n2: 2 ranks, 1 GPUs.",
        ),
        (facts("n1", uses_gpu=True, gpus=1) + facts("n2"), "unequal numbers .*n2: 1 ranks, 0 GPUs"),
        (facts(*(f"n{number}" for number in range(9))), "global_batch 8: is less than the 9 ranks"),
    ],
)
def test_a_bad_allocation_is_refused_in_one_line(ranks, line):
    with pytest.raises(EnergyError, match=line) as error:
        check(ranks, 8)
    assert "\n" not in str(error.value)


def test_good_allocations_and_the_last_node_of_a_restart():
    check(facts("n1", "n2"), 2)
    check(facts("n1", "n1", uses_gpu=True, gpus=2) + facts("n2", uses_gpu=True, gpus=1), 8)
    check(facts("n1"), 8, is_restart=True)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"goal": "money"}, "goal 'money': unknown"),
        ({"window_steps": 0}, "window_steps 0: is invalid: 1 or more"),
        ({"max_slowdown": -0.1}, "max_slowdown -0.1"),
        ({"lost_after_s": 0}, "lost_after_s 0: is invalid: 1 or more"),
    ],
)
def test_invalid_options_are_refused(options, line):
    with pytest.raises(UsageError, match=line):
        BalancedOptions(8, **options)
