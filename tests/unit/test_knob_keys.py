"""Test that many settings of one kind are reported in a single log line."""

from __future__ import annotations

import pytest

from slurm_energy.control import knob_keys


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([], ""),
        (["cpufreq.boost[all]"], "cpufreq.boost[all]"),
        ([f"cpufreq.governor[policy{n}]" for n in range(128)], "cpufreq.governor[policy0-127]"),
        (["a[p0]", "b[p0]", "a[p1]", "a[p5]", "b[x]"], "a[p0-1,p5], b[p0,x]"),
        (["a[package-0]", "a[package-1]"], "a[package-0-1]"),
        (["odd"], "odd[]"),
    ],
)
def test_keys_are_joined(keys: list[str], text: str) -> None:
    assert knob_keys.join_keys(keys) == text
