from __future__ import annotations

import pytest

from slurm_energy.errors import UsageError
from slurm_energy_lab.job import cpus_of_job, gpus_of_job, job_number


def test_cpus_come_from_the_step():
    assert cpus_of_job({"SENERGY_LAB_CPUS": "0-2,64-66"}) == [0, 1, 2, 64, 65, 66]


@pytest.mark.parametrize(
    ("environment", "number"),
    [({"SLURM_JOB_ID": "12"}, 12), ({}, None), ({"SLURM_JOB_ID": "0"}, None), ({"SLURM_JOB_ID": "x"}, None)],
)
def test_the_jobs_number_comes_from_slurm(environment, number):
    assert job_number(environment) == number


def test_outside_a_job_the_whole_node_is_meant():
    assert cpus_of_job({}) == []
    assert gpus_of_job({}) == []


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({"SLURM_JOB_GPUS": "0,1,2", "SLURM_STEP_GPUS": "2"}, [2]),
        ({"SLURM_JOB_GPUS": "0-3"}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "5", "SLURM_JOB_ID": "1"}, [5]),
    ],
)
def test_gpus_of_the_step_go_before_those_of_the_job(environment, gpus):
    assert gpus_of_job(environment) == gpus


def test_a_job_without_gpus_gets_advice():
    with pytest.raises(UsageError, match="--gpus-per-node"):
        gpus_of_job({"SLURM_JOB_ID": "7"})


@pytest.mark.parametrize("text", ["GPU-3f", "0;1", "0-", "-1", "0x1"])
def test_an_invalid_list_of_numbers_is_named(text: str):
    with pytest.raises(UsageError, match="SLURM_STEP_GPUS"):
        gpus_of_job({"SLURM_STEP_GPUS": text})
