"""Test of the agent's input checks by guided fuzzing, in a limited number of rounds.

`make fuzz` runs the fuzzing for longer.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "fuzz/agent_input.py"
BOUNDS = ("-runs=40000", "-max_total_time=6", "-seed=20260111", "-max_len=600")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed"),
]


@pytest.mark.parametrize("target", ["messages", "hook_environment", "server"])
def test_no_input_gets_past_the_checks(target: str) -> None:
    command = [sys.executable, str(PROGRAM), target, *BOUNDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Done" in done.stderr
