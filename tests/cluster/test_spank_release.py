"""The C parts on another Slurm release than this machine's: a whole Debian root, only where asked for."""

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


@pytest.mark.parametrize("release", ["", "21.08", "26.05; true"])
def test_an_unknown_release_is_refused(release):
    done = subprocess.run([SCRIPT, release], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
