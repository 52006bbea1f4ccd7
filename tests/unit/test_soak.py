"""A tenth of the day that benchmarks/soak.py lets pass."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from soaking import Soak


def test_hours_of_samples_and_jobs_leave_nothing_behind_and_lose_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "slurm_energy")
    found = Soak(tmp_path, hours=3, jobs=200).run()
    assert found.complete
    assert found.energy_uj == found.measured_uj == found.booked_uj
    assert len(set(found.descriptors)) == 1
    assert found.growth_bytes < 1_000_000
