"""Tests that jobs start in the order of slurm-energy on another Slurm release.

The release is installed in a complete Debian root directory. The tests run only on request.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("priority-release.sh")
CANNOT_BE_HAD = 4

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.mark.timeout(1200)
def test_jobs_start_in_our_order_on_another_release():
    release = os.environ.get("SENERGY_TEST_PRIORITY_RELEASE")
    if not release:
        pytest.skip("set SENERGY_TEST_PRIORITY_RELEASE=24.11 to test in a debootstrap root (5 minutes)")
    done = subprocess.run(
        [SCRIPT, release], capture_output=True, text=True, errors="replace", timeout=1180, check=False
    )
    if done.returncode == CANNOT_BE_HAD:
        pytest.skip(f"Slurm {release} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_prefix_without_slurm_is_refused(tmp_path):
    command = [SCRIPT, "--slurm-prefix", str(tmp_path), "--slurm-source", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("release", ["", "21.08", "24.11; true", "--slurm-prefix"])
def test_an_unknown_release_is_refused(release):
    done = subprocess.run([SCRIPT, release], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
