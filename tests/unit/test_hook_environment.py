"""The hook environments of different Slurm releases yield the same description of the job."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.slurm.hook_environment import job_context

PROLOG_22 = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOBID": "42",
    "SLURM_JOB_UID": "1001",
    "SLURM_UID": "1001",
    "SLURM_JOB_GID": "1001",
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_CPUS_PER_NODE": "64(x2),32",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NODELIST": "n[1-2,5]",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURMD_NODENAME": "n5",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "SPANK_ENERGY_POLICY": "edp",
    "SPANK_ENERGY_CAP": "400",
}
PROLOG_26 = {
    **{name: value for name, value in PROLOG_22.items() if name != "SLURM_NODELIST"},
    "SLURM_JOB_NODELIST": "n[1-2,5]",
    "SLURM_JOB_EXCLUSIVE": "node",
    "SLURM_JOB_SLUID": "s1234",
    "SLURM_JOB_GPUS": "0,2-3",
    "SLURM_JOB_RESTART_COUNT": "1",
}


def test_release_22() -> None:
    job = job_context(PROLOG_22)
    assert (job.key, job.uid, job.user, job.partition) == ((42, 0), 1001, "alice", "gpu")
    assert (job.cluster, job.node, job.cpus) == ("lab", "n5", 32)
    assert (job.gpus, job.exclusive, job.sluid) == (None, False, None)
    assert job.flags == {"ENERGY_POLICY": "edp", "ENERGY_CAP": "400"}


def test_release_26() -> None:
    job = job_context(PROLOG_26)
    assert (job.key, job.cpus, job.gpus) == ((42, 1), 32, (0, 2, 3))
    assert (job.exclusive, job.sluid) == (True, "s1234")


def test_a_job_of_which_little_is_known() -> None:
    job = job_context({"SLURM_JOBID": "7", "SLURM_UID": "0"})
    assert (job.key, job.uid, job.cpus, job.node, dict(job.flags)) == ((7, 0), 0, None, None, {})


@pytest.mark.parametrize("exclusive", ["no", "user", "mcs", "topo", ""])
def test_other_kinds_of_exclusivity_are_not_the_whole_node(exclusive: str) -> None:
    assert not job_context({**PROLOG_26, "SLURM_JOB_EXCLUSIVE": exclusive}).exclusive


@pytest.mark.parametrize("gpus", ["GPU-8a56", "0,x", "MIG-1", ""])
def test_gpus_that_are_not_numbers_are_not_known(gpus: str) -> None:
    assert job_context({**PROLOG_26, "SLURM_JOB_GPUS": gpus}).gpus is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"SLURM_JOB_ID": "12;rm"}, "SLURM_JOB_ID"),
        ({"SLURM_JOB_UID": "-1"}, "SLURM_JOB_UID"),
        ({"SLURM_JOB_RESTART_COUNT": "one"}, "SLURM_JOB_RESTART_COUNT"),
    ],
)
def test_what_is_not_a_number_is_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        job_context({**PROLOG_22, **change})


def test_a_missing_job_id_is_refused() -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_ID is missing"):
        job_context({"SLURM_JOB_UID": "0"})


@example("[----]")  # ClusterShell raises ValueError
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        job_context(
            {**PROLOG_22, "SLURM_JOB_CPUS_PER_NODE": text, "SLURM_NODELIST": text, "SLURM_JOB_GPUS": text}
        )
    except UsageError:
        pytest.fail("only job id and owner are needed")


def test_a_great_many_gpus_are_not_known() -> None:
    assert job_context({**PROLOG_22, "SLURM_JOB_GPUS": "0-999," * 1000 + "0"}).gpus is None


@pytest.mark.parametrize("text", ["٣", "５", "1\n"])
def test_only_plain_digits_are_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_ID"):
        job_context({**PROLOG_22, "SLURM_JOB_ID": text})
