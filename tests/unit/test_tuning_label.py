"""Tests of the energy label of a tuned job.

The label explains each setting in one sentence with its source and figures.
"""

from __future__ import annotations

from typing import Any

import pytest
from report_examples import answer, job_info, record, usages

from slurm_energy.records import AppliedSetting
from slurm_energy.reports.labels.tuning_label import explanations

CAPPED = {"gpu_limit_watts": 250.0}
APPLIED = AppliedSetting("nvml.power_limit[gpu0-1]", "400 W", "250 W", "250 W", True)
POINT = {"point": CAPPED, "time_ratio": 1.02, "power_ratio": 0.8, "source": "this run", "count": 3}


def tuned(applied: tuple[AppliedSetting, ...] = (APPLIED,), **values: Any) -> list[str]:
    tuning = {
        "mode": "on",
        "objective": "edp",
        "slowdown_limit": None,
        "probes": 4,
        "points": [POINT],
        **values,
    }
    changes: dict[str, Any] = {"policy": "edp", "applied": applied, "tuning": tuning}
    (job,) = usages([answer(record(1, **changes), job_info(1))])
    return explanations(job)


def test_a_measured_setting_has_its_figures() -> None:
    assert tuned(chosen=CAPPED, chosen_source="this run") == [
        "nvml.power_limit[gpu0-1] = 250 W: chosen for least energy-delay product; measured in this run in"
        " 3 windows: time +2.0 %, energy -18.4 % against the untuned job."
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"chosen": CAPPED, "chosen_source": "pinned", "points": []}, "pinned with 'senergy tune pin'."),
        (
            {"chosen": CAPPED, "chosen_source": "generic prior", "points": []},
            "a safe share of the job's own power draw.",
        ),
        (
            {
                "chosen": CAPPED,
                "chosen_source": "generic prior",
                "progress": "none",
                "slowdown_limit": 0.1,
                "points": [],
            },
            "at most 10 % slower; no progress signal; of 100 jobs with this draw at most one exceeds the"
            " limit by more than a percentage point.",
        ),
        (
            {
                "chosen": CAPPED,
                "chosen_source": "this run",
                "objective": "energy",
                "slowdown_limit": 0.05,
            },
            "least energy at most 5 % slower",
        ),
    ],
)
def test_the_source_and_the_limit_are_named(values: dict[str, Any], words: str) -> None:
    assert words in tuned(**values)[0]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"mode": "advise", "chosen": CAPPED, "chosen_source": "earlier runs", "estimated_saving": 0.163},
            "Tuning would have set GPU limit 250 W for least energy-delay product, which saves about"
            " 16 % energy; measured in earlier runs of this program.",
        ),
        (
            {"mode": "advise", "chosen": {}, "chosen_source": "generic prior"},
            "Tuning would have set nothing for least energy-delay product.",
        ),
        (
            {"chosen": {}, "chosen_source": "this run"},
            "No setting was kept for least energy-delay product: 4 settings were tried, none was better"
            " than the untuned job.",
        ),
        (
            {"chosen": {}, "phase": "probe"},
            "The job ended during the search for least energy-delay product: 4 settings were tried until"
            " then.",
        ),
        ({"chosen": {}, "probes": 0}, "No setting was tried for least energy-delay product."),
        (
            {"chosen": {}, "probes": 0, "progress": "none"},
            "No setting was tried for least energy-delay product: the job has no progress signal.",
        ),
        (
            {
                "chosen": {},
                "probes": 0,
                "progress": "none",
                "objective": "energy",
                "slowdown_limit": 0.05,
            },
            "No setting was tried for least energy at most 5 % slower: the job has no progress signal, and no"
            " power limit is certain enough to keep the slowdown limit.",
        ),
        (
            {
                "mode": "advise",
                "chosen": CAPPED,
                "chosen_source": "generic prior",
                "progress": "reported",
            },
            "Tuning would have set GPU limit 250 W for least energy-delay product; the first one to try, from"
            " a generic model of the hardware.",
        ),
        (
            {"chosen": None, "probes": 0},
            "Not tuned for least energy-delay product: the job ended before a setting was chosen.",
        ),
    ],
)
def test_tuning_that_set_nothing_is_explained_too(values: dict[str, Any], sentence: str) -> None:
    assert tuned((), **values) == [sentence]


def test_a_setting_that_was_only_tried_is_named_as_such() -> None:
    assert tuned(chosen={}, phase="probe")[0] == (
        "nvml.power_limit[gpu0-1] = 250 W: tried for least energy-delay product when the job ended."
    )


def test_a_job_whose_tuning_is_off_needs_no_sentence() -> None:
    assert tuned((), mode="off", chosen=None) == []


def test_values_of_a_newer_release_do_not_break_the_label() -> None:
    assert tuned((), chosen={"later_knob": 1}, chosen_source="later") == [
        "Not tuned for least energy-delay product: the job ended before a setting was chosen."
    ]
