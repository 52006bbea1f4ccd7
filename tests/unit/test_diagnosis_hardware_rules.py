"""Tests of the rules about hardware that a job does not use, or uses at a low power limit."""

import dataclasses
import math
from typing import Any

import pytest
from test_diagnosis_rules import K, job_of, series

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import find_causes
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import ObservedSeries


@pytest.mark.parametrize(
    ("cpu_joules", "lost"),
    [
        (9e5, 7 / 8 * 90.0 * 7200),  # the idle power of the node
        (8e4, 7 / 8 * 8e4),  # a part of a shared node
        (None, None),
    ],
)
def test_unused_cpus_never_lose_more_energy_than_the_job_used(
    cpu_joules: float | None, lost: float | None
) -> None:
    parts = series("cpu_busy_cores", [1.0] * 60), series("cpu_allocated_cores", [8.0] * 60)
    job = job_of(*parts, elapsed_s=7200.0)
    energies = {"n1": {"dram": 1e6} if cpu_joules is None else {"cpu": cpu_joules}}
    context = dataclasses.replace(job.context, idle_watts={"n1": {"cpu": 90.0}}, energy_joules=energies)
    (found,) = find_causes(dataclasses.replace(job, context=context), DiagnosisConfig())
    assert found.kind is K.UNUSED_CPU
    assert found.joules_lost == (None if lost is None else pytest.approx(lost))


def test_time_share_of_a_low_limit_is_the_throttled_time() -> None:
    parts = [series("gpu_busy_percent", [99.0] * 60, f"gpu[{index}]") for index in range(2)]
    parts += [series("throttle_power_percent", [90.0 + index] * 60, f"gpu[{index}]") for index in range(2)]
    job = job_of(*parts)
    limits = [{"n1": {f"gpu[{index}]": watts for index in range(2)}} for watts in (200.0, 700.0)]
    context = dataclasses.replace(job.context, limit_watts=limits[0], max_limit_watts=limits[1])
    (found,) = find_causes(dataclasses.replace(job, context=context), DiagnosisConfig())
    assert (found.kind, found.time_share) == (K.WRONG_LIMIT, pytest.approx(0.91))


def _busy_gpu(index: int, mhz: float, highest_mhz: float, **means: float) -> list[ObservedSeries]:
    means |= {"gpu_busy_percent": 99.0, "sm_clock_mhz": mhz, "max_sm_clock_mhz": highest_mhz}
    return [series(name, [mean] * 60, f"gpu[{index}]") for name, mean in means.items()]


def test_each_gpu_is_compared_with_its_own_highest_clock() -> None:
    fast = _busy_gpu(1, 1900.0, 1980.0, throttle_power_percent=0.0)
    job = job_of(*_busy_gpu(0, 1400.0, 1410.0, throttle_power_percent=0.0), *fast)
    assert find_causes(job, DiagnosisConfig()) == ()
    job = job_of(*_busy_gpu(0, 700.0, 1410.0, throttle_power_percent=0.0), *fast)
    (found,) = find_causes(job, DiagnosisConfig())
    assert (found.kind, found.where) == (K.WRONG_LIMIT, ("n1 gpu[0]",))


@pytest.mark.parametrize(
    ("limits", "title"),
    [
        ({}, None),
        ({"max_limit_watts": {"n1": {"gpu[0]": 560.0}}, "limit_watts": {"n1": {"gpu[0]": 560.0}}}, None),
        ({"max_limit_watts": {"n1": {"gpu[0]": 560.0}}, "limit_watts": {"n1": {"gpu[0]": 300.0}}}, "A power"),
        ({"settings": {"n1": (("nvml.locked_clocks[gpu0]", "0-1200 MHz", "0-1200 MHz"),)}}, "A clock"),
    ],
)
def test_low_clock_without_reported_throttling_needs_a_known_limit(
    limits: dict[str, Any], title: str | None
) -> None:
    job = job_of(*_busy_gpu(0, 1200.0, 1700.0))
    context = dataclasses.replace(job.context, **limits)
    found = find_causes(dataclasses.replace(job, context=context), DiagnosisConfig())
    titles = [] if title is None else [f"{title} limit holds the GPU clock 29 % below its maximum"]
    assert [finding.title for finding in found] == titles


def test_node_of_unknown_use_is_not_called_unused() -> None:
    unknown = [math.nan] * 30
    node_1 = series("cpu_allocated_cores", [2.0] * 60), series("cpu_busy_cores", [2.0] * 60)
    node_2 = [
        series("cpu_allocated_cores", [2.0] * 60, node="n2"),
        series("cpu_busy_percent", [0.0] * 30 + unknown, "cpu[0]", "n2"),
        series("cpu_busy_percent", unknown + [0.0] * 30, "cpu[1]", "n2"),
    ]
    job = job_of(*node_1)
    nodes = (*job.nodes, NodeObservation("n2", tuple(node_2)))
    context = dataclasses.replace(job.context, nodes=("n1", "n2"))
    assert find_causes(dataclasses.replace(job, context=context, nodes=nodes), DiagnosisConfig()) == ()


def test_a_core_that_is_used_in_part_is_not_called_unused() -> None:
    busy, allocated = series("cpu_busy_cores", [0.3] * 60), series("cpu_allocated_cores", [128.0] * 60)
    (finding,) = find_causes(job_of(busy, allocated, elapsed_s=7200.0), DiagnosisConfig())
    assert finding.title == "127 of 128 CPUs are never used"
