from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import fake_controller
import golden_files
import pytest
import report_examples as examples
from report_examples import answer, component, job_info, record, usages

from slurm_energy.records import AppliedSetting, JobDevice
from slurm_energy.reports.acct.fields import Style
from slurm_energy.reports.labels.advice import notes
from slurm_energy.reports.labels.terminal_label import label, requested_text
from slurm_energy.reports.plots.text_plot import ASCII, BLOCKS, Glyphs
from slurm_energy.reports.usage import JobUsage


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    with fake_controller.timezone("UTC"):
        yield


@pytest.mark.parametrize(
    ("name", "answers", "glyphs"),
    [
        ("label_cpu.txt", examples.cpu_job(), BLOCKS),
        ("label_gpu.txt", examples.gpu_job(), BLOCKS),
        ("label_gpu_ascii.txt", examples.gpu_job(), ASCII),
        ("label_unknown.txt", examples.unknown_job(), BLOCKS),
    ],
)
def test_labels_match_golden_files(name: str, answers: list[dict[str, Any]], glyphs: Glyphs) -> None:
    (job,) = usages(answers)
    earlier = usages(examples.earlier_run()) if job.first.restart_count else []
    lines = label(job, glyphs, Style(), earlier)
    assert max(map(len, lines)) <= 100
    if glyphs is ASCII:
        assert "\n".join(lines).replace("é", "e").isascii()
    golden_files.compare(name, "\n".join(lines) + "\n")


def one(**changes: Any) -> JobUsage:
    info = changes.pop("job", job_info(1))
    (job,) = usages([answer(record(1, **changes), info)])
    return job


LIMIT = AppliedSetting("nvml.power_limit[gpu0-1]", "400 W", "400 W", "400 W", True)


def gpu_parts(watts_each: float, cpu_watts: float = 50.0, seconds: float = 40.0) -> tuple[Any, ...]:
    gpus = (component(f"gpu[{i}]", watts_each * seconds) for i in range(2))
    return (component("cpu", cpu_watts * seconds), *gpus)


def gpus(product: str, low: float | None, high: float | None, count: int = 2) -> tuple[JobDevice, ...]:
    return tuple(JobDevice(f"gpu[{i}]", product, low, high) for i in range(count))


@pytest.mark.parametrize(
    ("changes", "text", "directive"),
    [
        (
            {"components": gpu_parts(212), "devices": gpus("NVIDIA L4", 100.0, 400.0)},
            "53 % of their 400 W limit",
            "",
        ),
        ({"components": gpu_parts(300, 320)}, "The CPUs used 35 % of the energy", ""),
        (
            {"requested": {"cap_watts": "300"}, "seconds_above_cap": 20.0, "peak_watts": 333.0},
            "exceeded the cap for 00:00:20 (50 % of the time)",
            "--energy-cap=340",
        ),
        (
            {"requested": {"cap_watts": "300"}, "seconds_above_cap": 20.0, "peak_watts": 10050.0},
            "exceeded the cap for 00:00:20 (50 % of the time)",
            "",
        ),
        (
            {"throttled_seconds": 10.0},
            "throttled for 00:00:10 (25 % of the time) by temperature or a limit",
            "",
        ),
        (
            {"throttled_seconds": 40.0, "policy": "cap", "applied": (LIMIT,)},
            "(100 % of the time) by the applied power limit.",
            "",
        ),
        (
            {"budget_capped_seconds": 20.0},
            "A power budget held power limits below those of the job for 00:00:20 (50 % of the time)",
            "",
        ),
        (
            {"budget_capped_seconds": 1.0, "throttled_seconds": 10.0},
            "by temperature or a power budget.",
            "",
        ),
        ({"uncertain_seconds": 2.5}, "For 2.5 s a counter could not be read", ""),
        ({"job": job_info(1, nodes=4)}, "3 of 4 nodes have not delivered a record", ""),
        (
            {"components": (component("cpu", 1.0), component("gpu[0]", None))},
            "Not measured and not included in the total: GPU.",
            "",
        ),
        ({"notes": ("energy cut at midnight",)}, "energy cut at midnight", ""),
        (
            {"applied": (dataclasses.replace(LIMIT, applied=None, note="no permission"),)},
            "nvml.power_limit could not be set to 400 W on n1: no permission.",
            "",
        ),
        ({"applied": (dataclasses.replace(LIMIT, restored=False),)}, "was not restored to 400 W", ""),
    ],
)
def test_a_note_for_each_observation(changes: dict[str, Any], text: str, directive: str) -> None:
    found = [note for note in notes(one(**changes)) if text in note.text]
    assert [note.directive for note in found] == [directive]


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "edp"},
        {"policy": "edp", "components": gpu_parts(390), "applied": (LIMIT,)},
        {
            "policy": "cap",
            "components": gpu_parts(212),
            "applied": (LIMIT,),
            "requested": {"gpu_cap_watts": "250"},
        },
        {
            "policy": "edp",
            "requested": {"cap_watts": "300"},
            "seconds_above_cap": 1.0,
            "throttled_seconds": 1.0,
        },
        {"policy": "monitor", "components": ()},
        {"policy": "monitor", "end": examples.START, "start": examples.START},
    ],
)
def test_no_note_without_a_reason(changes: dict[str, Any]) -> None:
    assert [note for note in notes(one(**changes)) if note.category != "trust"] == []


def test_uneven_nodes_are_named() -> None:
    answers = [
        answer(record(1, n, mean_watts=w, policy="edp"), job_info(1, nodes=2))
        for n, w in (("a", 500.0), ("b", 200.0))
    ]
    (job,) = usages(answers)
    assert [note.text for note in notes(job) if note.category == "finding"] == [
        "b drew 200 W on average, a 500 W: is the work distributed evenly?",
    ]


def test_the_flags_that_fix_or_bound_settings_are_named() -> None:
    flags = {"cap_watts": "400", "cpu_freq": "2400", "gpu_clock": "1.2GHz", "power_profile": "MAX_Q"}
    flags |= {"slowdown": "2.5", "tuning": "advise", "tag": "x"}
    assert requested_text(one(requested=flags)) == (
        "cap 400 W, CPU at most 2400 MHz, GPU clock at most 1.2GHz, power profile MAX_Q, "
        "slowdown at most 2.5 %, tuning advise"
    )
