"""Attacks of an unprivileged user on senergyctld's port, and on its clients by a program in its place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import http_attacks
import pytest

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user"),
    pytest.mark.skipif(shutil.which("munged") is None, reason="munge is not installed"),
]
MAX_RESIDENT_MB = 200.0


def highest_resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024 / 1e6


@pytest.mark.parametrize("attack", http_attacks.ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attacked_controller_stays_small_and_answers(controller, attack):
    controller.start()
    with http_attacks.running(attack, controller.port, controller.munge_socket):
        for _ in range(5):
            assert controller.client().get("/v1/status")["records"] == 0
    with http_attacks.running(attack, controller.port, controller.munge_socket):
        assert controller.client().get("/v1/status")["records"] == 0
    print(f"{attack.__name__}: {highest_resident_mb(controller.process.pid):.0f} MB")
    assert highest_resident_mb(controller.process.pid) < MAX_RESIDENT_MB
    assert "Traceback" not in controller.log.read_text()
