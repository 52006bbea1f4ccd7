"""Tests of the C implementation of the fingerprint, a digest of a batch script and its arguments.

The C implementation is compiled with sanitizers. It must return the same value as the Python implementation,
and must read only files of the owner.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.slurm.script_fingerprint import fingerprint

SPANK = Path(__file__).resolve().parents[2] / "spank"
DRIVER = Path(__file__).parent / "native" / "fingerprint_driver.c"
PIECES = st.sampled_from([b"#SBATCH", b"#SBATC", b"#", b"\n", b"\r", b"x", b" ", b"\0", b"\xff", b"SBATCH"])
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    program = tmp_path_factory.mktemp("fingerprint") / "driver"
    flags = [
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=address,undefined",
    ]
    sources = [SPANK / "fingerprint.c", DRIVER]
    subprocess.run(["gcc", *flags, "-I", SPANK, "-o", program, *sources], check=True, timeout=60)

    def ask(*arguments):
        done = subprocess.run([program, *arguments], capture_output=True, check=True, timeout=30)
        return done.stdout.decode().strip()

    return ask


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(PIECES).map(b"".join),
    st.lists(st.binary(max_size=9).filter(lambda b: b"\0" not in b), max_size=3),
)
def test_as_in_python(driver, tmp_path, content, arguments):
    script = tmp_path / "script"
    script.write_bytes(content)
    assert driver(script, *arguments) == fingerprint(content, arguments)


def test_of_many_reads(driver, tmp_path):
    script = tmp_path / "script"
    script.write_bytes((b"#SBATCH -N1\n" + b"echo 1234567\n") * 20_000)
    assert driver(script, "a") == fingerprint(script.read_bytes(), [b"a"])


def test_only_of_files_of_the_owner(driver, tmp_path):
    script, link, pipe, large = (tmp_path / name for name in ("script", "link", "pipe", "large"))
    script.write_bytes(b"#!/bin/sh\n")
    link.symlink_to(script)
    os.mkfifo(pipe)
    large.write_bytes(bytes(5 << 20))
    for place in (link, pipe, large, tmp_path, tmp_path / "missing"):
        assert driver(place) == "none"
    assert driver() == "none"
    if os.geteuid() == 0:
        os.chown(script, 65534, 65534)
        assert driver(script) == "none"
