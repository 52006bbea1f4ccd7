"""Tests of the C parts on another Slurm release than the release on this machine.

The tests use a complete Debian root directory and run only on request.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("spank-release.sh")
CANNOT_BE_HAD = 4

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.mark.timeout(900)
def test_the_same_source_builds_and_works_on_another_release():
    release = os.environ.get("SENERGY_TEST_RELEASE")
    if not release:
        pytest.skip("set SENERGY_TEST_RELEASE=26.05 to test in a debootstrap root (network, 2 minutes)")
    done = subprocess.run(
        [SCRIPT, release], capture_output=True, text=True, errors="replace", timeout=880, check=False
    )
    if done.returncode == CANNOT_BE_HAD:
        pytest.skip(f"Slurm {release} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_the_same_source_works_with_a_slurm_outside_usr():
    prefix = os.environ.get("SENERGY_TEST_PREFIX")
    if not prefix:
        pytest.skip("set SENERGY_TEST_PREFIX=/opt/slurm to test with the Slurm there")
    command = [SCRIPT, "--slurm-prefix", prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_prefix_without_slurm_is_refused(tmp_path):
    command = [SCRIPT, "--slurm-prefix", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("release", ["", "21.08", "26.05; true", "--slurm-prefix"])
def test_an_unknown_release_is_refused(release):
    done = subprocess.run([SCRIPT, release], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
