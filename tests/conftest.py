"""Settings for all tests: which users may run them, and how many examples hypothesis tries.

Every run tries the same examples, without time limits, which a loaded machine would exceed. `make check`
tries a quarter of them (`--hypothesis-profile=check`); `make soak` searches for new ones (`search`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile

import pytest

NOBODY = 65534
LONGEST_TEMPORARY = 24

# Sockets' paths have 107 bytes, of which pytest and the tests take more than half.
if len(os.fsencode(os.path.realpath(tempfile.gettempdir()))) > LONGEST_TEMPORARY:
    os.environ["TMPDIR"], tempfile.tempdir = "/tmp", None

with contextlib.suppress(ImportError):  # some tests run where only Slurm and pytest are
    from hypothesis import HealthCheck, settings

    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("search", max_examples=300, **untimed)
    settings.register_profile("same", max_examples=100, derandomize=True, **untimed)
    settings.register_profile("check", settings.get_profile("same"), max_examples=10)
    settings.load_profile("same")


@functools.cache
def _readable_for_others() -> bool:
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", "import slurm_energy"]
    try:
        done = subprocess.run(command, user=NOBODY, cwd="/", capture_output=True, timeout=60, check=False)
    except PermissionError:  # not even its interpreter
        return False
    return done.returncode == 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("other_user") and not _readable_for_others():
        pytest.skip("other users cannot read this checkout: try a clone outside of a home directory")
