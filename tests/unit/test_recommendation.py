"""Tests of the recommendations of settings in the output of `senergy job`.

Only settings that the devices accept may be recommended. Each recommendation must state how much energy the
settings save.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from report_examples import answer, component, job_info, record, usages

from slurm_energy.config import BoundsConfig, Config, EdpEntry, SitePolicy
from slurm_energy.oracle.hardware.hardware_files import find_hardware
from slurm_energy.records import EnergyRecord, JobDevice
from slurm_energy.reports.labels.advice import notes
from slurm_energy.reports.labels.note import Note
from slurm_energy.reports.usage import JobUsage

CPU = JobDevice("cpu", "AMD EPYC 7513 32-Core Processor")


def gpu_job(
    product: str, low: float | None, high: float | None, watts: float = 60.0, **changes: Any
) -> JobUsage:
    gpus = tuple(JobDevice(f"gpu[{i}]", product, low, high) for i in range(2))
    parts = (component("cpu", 2000.0), *(component(gpu.name, watts * 40) for gpu in gpus))
    values = {"policy": "monitor", "components": parts, "devices": (CPU, *gpus), **changes}
    (job,) = usages([answer(record(1, **values), job_info(1))])
    return job


def tries(job: JobUsage, config: Config | None = None) -> list[Note]:
    return [note for note in notes(job, config) if note.directive]


@pytest.mark.parametrize(
    ("product", "low", "high"),
    [
        ("NVIDIA L4", 40.0, 72.0),
        ("NVIDIA RTX 6000 Ada Generation", 100.0, 300.0),
        ("NVIDIA H100 80GB HBM3", 200.0, 700.0),
        ("AMD Instinct MI300X", None, None),
        ("NVIDIA A100-SXM4-40GB", 310.0, 400.0),
        ("NVIDIA A100-SXM4-40GB", 100.0, 300.0),
        ("NVIDIA A100-SXM4-40GB", None, None),
    ],
)
def test_no_recommendation_without_an_entry_or_a_settable_value(
    product: str, low: float | None, high: float | None
) -> None:
    assert tries(gpu_job(product, low, high)) == []


def test_records_that_name_no_device_get_no_recommendation() -> None:
    assert tries(gpu_job("NVIDIA A100-SXM4-40GB", 100.0, 400.0, devices=())) == []
    (cpu_job,) = usages([answer(record(1, policy="monitor"), job_info(1))])
    assert tries(cpu_job) == []


def test_edp_is_recommended_where_it_has_a_measured_entry() -> None:
    (note,) = tries(gpu_job("NVIDIA A100-SXM4-40GB", 100.0, 400.0, watts=350.0, model="gemm"))
    assert note.directive == "--energy-policy=edp"
    assert "starts from 300 W per GPU here, which was measured on A100-SXM4" in note.text
    assert "EDP +34.2 %" in note.text
    (job,) = usages([answer(record(1, policy="performance", devices=(CPU,), model="triad"), job_info(1))])
    (note,) = tries(job)
    assert "starts from at most 1500 MHz here" in note.text and "EDP +25.5 %" in note.text
    for changes in ({"policy": "edp"}, {"requested": {"gpu_cap_watts": "200"}}, {"policy": "balanced"}):
        assert (
            tries(gpu_job("NVIDIA A100-SXM4-40GB", 100.0, 400.0, watts=350.0, model="gemm", **changes)) == []
        )


@pytest.mark.parametrize(("watts", "many"), [(60.0, 0), (299.0, 0), (301.0, 1)])
def test_edp_is_recommended_only_where_its_cap_would_bind(watts: float, many: int) -> None:
    assert len(tries(gpu_job("NVIDIA A100-SXM4-40GB", 100.0, 400.0, watts=watts, model="gemm"))) == many


def test_edp_is_not_recommended_for_nodes_with_different_processors() -> None:
    other = JobDevice("cpu", "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz")
    for second, many in ((CPU, 1), (other, 0)):
        job_facts = job_info(1, nodes=2)
        (job,) = usages(
            [
                answer(record(1, node=node, policy="monitor", devices=(device,), model="triad"), job_facts)
                for node, device in (("n1", CPU), ("n2", second))
            ]
        )
        assert len(tries(job)) == many


def test_edp_is_not_recommended_to_users_without_permission() -> None:
    job = gpu_job("NVIDIA A100-SXM4-40GB", 100.0, 400.0, watts=350.0, model="gemm")
    for site, many in (
        (SitePolicy(users=["alice"]), 1),
        (SitePolicy(users=["bob"]), 0),
        (SitePolicy(base="performance"), 0),
    ):
        assert len(tries(job, Config(policies={"edp": site}))) == many


def test_a_site_s_entry_needs_a_figure() -> None:
    said, silent = (
        Config(edp=(EdpEntry(gpu="L4", gpu_cap_watts=60, source=source),))
        for source in ("acceptance test 2025: EDP +9 %", "as the vendor says")
    )
    job = gpu_job("NVIDIA L4", 40, 72, watts=68.0)
    assert [note.directive for note in tries(job, said)] == ["--energy-policy=edp"]
    assert tries(job, silent) == []
    assert tries(gpu_job("NVIDIA L4", 65, 72, watts=68.0), said) == []


@pytest.mark.parametrize(("low", "high"), [(100.0, 300.0), (180.0, 300.0), (100.0, 160.0), (None, None)])
def test_a_recommended_cap_states_its_prediction(low: float | None, high: float | None) -> None:
    pytest.importorskip("numpy")
    kind = find_hardware("NVIDIA A40")
    found = tries(gpu_job("NVIDIA A40", low, high, watts=240.0, model="resnet50"))
    for note in found:
        cap = float(note.directive.removeprefix("--energy-gpu-cap="))
        assert (
            (kind.min_cap_watts if low is None else low)
            <= cap
            < (kind.max_cap_watts if high is None else high)
        )
        assert re.search(r"predicted to change time by [+]\d+ % and the GPUs' energy by -\d+ %", note.text)
        assert "resnet50 on a40-48gb, fitted to" in note.text
    assert bool(found) == (high != 160.0)
    # A job that draws a quarter of the predicted power does not match its model.
    assert tries(gpu_job("NVIDIA A40", low, high, watts=60.0, model="resnet50")) == []


def test_a_recommended_cap_is_within_the_site_s_bounds() -> None:
    pytest.importorskip("numpy")
    config = Config(bounds=BoundsConfig(gpu_cap_watts=(240.0, 260.0)))
    for note in tries(gpu_job("NVIDIA A40", 100.0, 300.0, watts=240.0, model="resnet50"), config):
        assert 240 <= float(note.directive.removeprefix("--energy-gpu-cap=")) <= 260
    config = Config(bounds=BoundsConfig(gpu_cap_watts=(400.0, 500.0)))
    assert tries(gpu_job("NVIDIA A40", 100.0, 300.0, watts=240.0, model="resnet50"), config) == []


@pytest.mark.parametrize(
    ("product", "changes"),
    [
        ("NVIDIA A40", {"model": "my-own"}),
        ("NVIDIA A40", {}),
        ("NVIDIA H200", {"model": "resnet50"}),
        ("NVIDIA A40", {"model": "resnet50", "policy": "powersave"}),
        ("NVIDIA RTX A4000", {"model": "resnet50"}),
    ],
)
def test_no_cap_without_a_prediction_based_on_measurements(product: str, changes: dict[str, Any]) -> None:
    assert tries(gpu_job(product, 100.0, 300.0, watts=240.0, **changes)) == []


def test_devices_survive_serialisation() -> None:
    one = record(1, devices=(CPU, JobDevice("gpu[0]", "NVIDIA L4", 40.0, 72.0)))
    assert EnergyRecord.from_json(one.to_json()) == one
