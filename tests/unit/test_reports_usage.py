from __future__ import annotations

import math

import pytest
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st
from report_examples import START, answer, component, job_info, record, usages

from slurm_energy.errors import UsageError
from slurm_energy.records import ComponentEnergy, Quality
from slurm_energy.reports.usage import AccountedRecord

JOULES = st.none() | st.floats(0, 1e12, allow_nan=False)
COMPONENTS = ("cpu", "dram", "gpu[0]", "gpu[1]", "other")


@given(st.lists(st.lists(JOULES, min_size=5, max_size=5), min_size=1, max_size=6))
def test_a_job_is_the_sum_of_its_nodes(table: list[list[float | None]]) -> None:
    records = [
        record(7, f"n{i}", components=tuple(component(p, j) for p, j in zip(COMPONENTS, row, strict=True)))
        for i, row in enumerate(table)
    ]
    (job,) = usages([answer(r, job_info(7, nodes=len(records))) for r in records])
    known = [r.energy_joules for r in records if r.energy_joules is not None]
    assert job.energy_joules == (pytest.approx(math.fsum(known)) if known else None)
    for name in ("cpu", "dram", "gpu", "other"):
        shares = [
            c.energy_joules
            for r in records
            for c in r.components
            if c.name.startswith(name) and c.energy_joules is not None
        ]
        assert job.component_joules(name) == (pytest.approx(math.fsum(shares)) if shares else None)
    if job.energy_joules is not None:
        parts = [job.component_joules(name) or 0.0 for name in ("cpu", "dram", "gpu", "other")]
        assert job.energy_joules == pytest.approx(math.fsum(parts))
        assert job.edp_joule_seconds == pytest.approx(job.energy_joules * job.elapsed_s)
        assert job.mean_watts == pytest.approx(job.energy_joules / job.elapsed_s)
    incomplete = any(j is None for row in table for j in row[:4]) or len(known) < len(records)
    expected = None if not known else Quality.PARTIAL if incomplete else Quality.MEASURED
    assert job.quality == expected


def test_unknown_figures_stay_unknown() -> None:
    (job,) = usages(examples.unknown_job())
    figures = (
        job.energy_joules, job.mean_watts, job.peak_watts, job.edp_joule_seconds, job.ed2p_joule_seconds2,
        job.energy_kwh, job.cpus, job.quality, job.seconds_above_cap, job.component_joules("cpu"),
    )  # fmt: skip
    assert set(figures) == {None}


def test_a_node_meter_replaces_the_sum_of_components() -> None:
    parts = (component("cpu", 100.0), component("node", 300.0, "ipmi:dcmi"), component("dram", 10.0))
    (job,) = usages([answer(record(1, components=parts), None)])
    assert job.energy_joules == 300.0
    assert job.component_joules("cpu") == 100.0


def test_missing_nodes_make_a_job_partial() -> None:
    (job,) = usages([answer(record(1), job_info(1, nodes=3))])
    assert (job.missing_nodes, job.quality) == (2, Quality.PARTIAL)


def test_missing_nodes_are_unknown_without_slurms_count() -> None:
    (job,) = usages([answer(record(1), None)])
    assert (job.missing_nodes, job.quality) == (None, Quality.MEASURED)


@pytest.mark.parametrize(
    ("qualities", "expected"),
    [
        (["measured", "measured"], "measured"),
        (["measured", "modelled"], "modelled"),
        (["modelled", "partial"], "partial"),
    ],
)
def test_quality_is_the_worst_one(qualities: list[str], expected: str) -> None:
    parts = tuple(ComponentEnergy(f"gpu[{i}]", 1.0, "nvml:x", Quality(q)) for i, q in enumerate(qualities))
    (job,) = usages([answer(record(1, components=parts), None)])
    assert job.quality == expected


def test_unmeasured_components_are_listed_and_only_measurable_ones_make_a_job_partial() -> None:
    (job,) = usages(examples.cpu_job())
    assert (job.unknown_components, job.quality) == (("other",), Quality.MEASURED)
    (job,) = usages(examples.gpu_job())
    assert (job.unknown_components, job.quality) == (("dram",), Quality.PARTIAL)


def test_components_without_an_interface_do_not_make_a_job_partial() -> None:
    (job,) = usages([answer(record(1, components=(component("cpu", 5.0), component("gpu[0]", 7.0))), None)])
    assert job.unknown_components == ("dram", "other")
    assert job.component_types == ("cpu", "dram", "gpu", "other")
    assert job.quality == Quality.MEASURED


def test_a_node_meter_covers_everything() -> None:
    parts = (component("cpu", 5.0), component("node", 100.0, "ipmi:dcmi"))
    (job,) = usages([answer(record(1, components=parts), None)])
    assert job.unknown_components == ()
    mixed = [answer(record(1, components=parts), None), answer(record(1, "n2"), None)]
    assert usages(mixed)[0].unknown_components == ("other",)


def test_jobs_are_ordered_by_array_and_component_number() -> None:
    ids = [
        (9, "9"),
        (12, "10_1"),
        (13, "10_2"),
        (10, "10_10"),
        (14, "14+0"),
        (15, "14+1"),
        (11, "11"),
        (16, None),
    ]
    answers = [answer(record(job_id), job_info(job_id, display_id=shown)) for job_id, shown in ids]
    shown = [job.display_id for job in usages(answers)]
    assert shown == ["9", "10_1", "10_2", "10_10", "11", "14+0", "14+1", "16"]


def test_steps_belong_to_their_job_with_batch_first() -> None:
    steps = [answer(record(1, step=name), job_info(1)) for name in ("10", "9", "extern", "batch")]
    (job,) = usages([*steps, answer(record(1), job_info(1))])
    assert [step.first.step for step in job.steps] == ["batch", "extern", "9", "10"]


def test_steps_without_a_job_record_are_rows() -> None:
    rows = usages([answer(record(1, step="batch"), job_info(1))])
    assert [row.display_id for row in rows] == ["1.batch"]


def test_only_the_last_run_of_a_requeued_job_by_default() -> None:
    answers = [*examples.gpu_job(), *examples.earlier_run()]
    assert [row.first.restart_count for row in usages(answers)] == [1]
    assert [row.first.restart_count for row in usages(answers, duplicates=True)] == [0, 1]


def test_a_run_without_accounting_data_is_the_newest() -> None:
    answers = [answer(record(1, restart_count=1), None), answer(record(1), job_info(1))]
    assert [row.first.restart_count for row in usages(answers)] == [1]


def test_nodes_of_a_run_stay_together_if_one_has_accounting_data() -> None:
    (job,) = usages([answer(record(1, "n1"), None), answer(record(1, "n2"), job_info(1, nodes=2))])
    assert (job.nodes, job.missing_nodes) == (("n1", "n2"), 0)


def test_jobs_with_a_reused_id_are_separate() -> None:
    old, new = job_info(1, submit=START - 90000), job_info(1)
    answers = [answer(record(1), new), answer(record(1, start=START - 80000, end=START - 79000), old)]
    assert [row.start for row in usages(answers)] == [START]
    assert [row.start for row in usages(answers, duplicates=True)] == [START - 80000, START]


def test_times_and_peaks_over_nodes() -> None:
    (job,) = usages(examples.gpu_job())
    assert (job.start, job.end, job.elapsed_s) == (START, START + 100, 100)
    assert job.peak_watts == 1240 + 1140
    assert (job.seconds_above_cap, job.uncertain_seconds) == (8.0, 1.5)


def test_a_record_of_a_newer_controller_may_have_more_keys() -> None:
    data = {**answer(record(1), {**job_info(1), "qos": "high"}), "received": 5.0}
    assert AccountedRecord.from_json(data).job.display_id == "1"


@pytest.mark.parametrize("data", [None, [], {}, {"schema": 1}, {**record(1).to_json(), "end": 0.0}])
def test_an_invalid_response_is_refused(data: object) -> None:
    with pytest.raises(UsageError):
        AccountedRecord.from_json(data)
