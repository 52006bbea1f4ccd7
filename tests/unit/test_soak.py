"""In a long simulated run, the agent loses no records and energy, and leaks no resources.

The agent runs on an emulated node with jobs. The test simulates some hours. `make soak` simulates a whole
day, as benchmarks/soak.py does.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from soaking import Soak


@pytest.mark.parametrize(
    ("hours", "jobs"),
    [
        pytest.param(2, 130, marks=pytest.mark.slow),
        pytest.param(24, 1600, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_hours_of_samples_and_jobs_leave_nothing_behind_and_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hours: int, jobs: int
) -> None:
    caplog.set_level(logging.ERROR, "slurm_energy")
    found = Soak(tmp_path, hours=hours, jobs=jobs).run()
    assert found.complete
    assert found.energy_uj == found.measured_uj == found.charged_uj
    assert len(set(found.descriptors)) == 1
    assert found.growth_bytes < 1_000_000
