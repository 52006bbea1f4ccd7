"""Skips tests that run the package as somebody else where nobody else can read the checkout."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

NOBODY = 65534


@functools.cache
def _readable_for_others() -> bool:
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", "import slurm_energy"]
    done = subprocess.run(command, user=NOBODY, cwd="/", capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("other_user") and not _readable_for_others():
        pytest.skip("other users cannot read this checkout: try a clone outside of a home directory")
