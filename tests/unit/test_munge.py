"""Tests of the Python binding of libmunge while munged is not running.

tests/cluster/test_controller_munge.py tests the binding with munged.
"""

from __future__ import annotations

import ctypes.util

import pytest

from slurm_energy.errors import EnergyError, ForbiddenError, UnavailableError
from slurm_energy.slurm import munge

pytestmark = pytest.mark.skipif(
    ctypes.util.find_library("munge") is None, reason="libmunge2 is not installed"
)


def test_says_that_munged_is_not_there(tmp_path):
    socket = tmp_path / "no.socket"
    for call in (lambda: munge.encode(b"x", socket), lambda: munge.decode("MUNGE:AAAA:", socket)):
        with pytest.raises(UnavailableError) as raised:
            call()
        assert str(socket) in str(raised.value)
        assert "is munged running?" in str(raised.value)


@pytest.mark.parametrize("text", ["", "MUNGE:é:", "MUNGE:\0:"])
def test_refuses_text_that_cannot_be_a_credential(text, tmp_path):
    with pytest.raises(ForbiddenError):
        munge.decode(text, tmp_path / "no.socket")


def test_errors_are_one_line(tmp_path):
    with pytest.raises(EnergyError) as raised:
        munge.encode(b"x", tmp_path / "a\nb")
    assert "\n" not in str(raised.value)
