"""Test the commands in docs/install-by-hand.md and their extraction from the page.

The commands run on a fresh Debian with systemd, but only on request.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("install-docs.sh")
BLOCKS = Path(__file__).with_name("install_blocks.py")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "install-by-hand.md"
CANNOT_BE_HAD = 4


@pytest.mark.cluster
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.timeout(1800)
def test_every_block_has_the_effect_that_the_page_states():
    debian = os.environ.get("SENERGY_TEST_INSTALL")
    if not debian:
        pytest.skip("set SENERGY_TEST_INSTALL=12 or 13 to test in a debootstrap root (6 minutes)")
    done = subprocess.run(
        [SCRIPT, debian], capture_output=True, text=True, errors="replace", timeout=1780, check=False
    )
    if done.returncode == CANNOT_BE_HAD:
        pytest.skip(f"Debian {debian} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("debian", ["", "11", "12; true"])
def test_an_unknown_debian_is_refused(debian):
    done = subprocess.run([SCRIPT, debian], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_every_block_has_an_action(tmp_path):
    done = subprocess.run(
        ["python3", BLOCKS, PAGE, tmp_path, "CLUSTER=docs"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert {"run", "fails", "file", "append"} == {action for _, action, _ in listed}
    assert "Going back" in {section for _, _, section in listed}
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert 'name = "docs"' in text
    for word in ("senergy doctor", "senergyctld --check", "systemctl disable --now senergyctld"):
        assert word in text
