"""Tests that the daemons work within the limits of their systemd units.

The limits concern system calls and capabilities.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import sandbox
from agent_node import NodeAgent

from slurm_energy.templates import find, render

SANDBOX = Path(__file__).with_name("sandbox.py")

pytestmark = [
    pytest.mark.node,
    pytest.mark.root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are those of x86_64"),
    pytest.mark.skipif(not sandbox.NUMBERS.exists(), reason="libc6-dev is not installed"),
    pytest.mark.skipif(not sandbox.CAPABILITIES.exists(), reason="linux-libc-dev is not installed"),
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"),
]


@pytest.mark.parametrize("profile", ["xeon-8358", "epyc-7513-a100"])
def test_settings_are_applied_measured_and_restored_inside_the_unit_s_limits(
    emulate, tmp_path: Path, profile: str
) -> None:
    unit = tmp_path / "senergyd.service"
    unit.write_text(render(find("senergyd.service"), {}, lambda *_values: None))
    agent = NodeAgent(emulate(profile), under=[sys.executable, str(SANDBOX), str(unit)])
    try:
        before = agent.settings()
        agent.start()
        assert limits(agent) == {"CapBnd": 1 << 21, "CapEff": 1 << 21, "NoNewPrivs": 1, "Seccomp": 2}
        flags = {"gpu_cap": "250"} if agent.gpus() else {"cap": "400"}
        begun = agent.begin(1, policy="powersave", **flags)
        assert begun["applied"] and not begun["failed"]
        record = agent.end(1)
        assert all(part.energy_joules is not None for part in record.components)
        assert agent.settings() == before
        agent.stop()
        assert not re.search(r"not permitted|error|Traceback", agent.log()), agent.log()
    finally:
        agent.remove()


def limits(agent: NodeAgent) -> dict[str, int]:
    status = Path(f"/proc/{agent.pid()}/status").read_text()
    found = dict(re.findall(r"^(CapBnd|CapEff|NoNewPrivs|Seccomp):\s+(\w+)$", status, re.MULTILINE))
    return {name: int(value, 16) for name, value in found.items()}


def test_the_controller_serves_inside_its_unit_s_limits(tmp_path: Path) -> None:
    unit, config, log = (tmp_path / name for name in ("senergyctld.service", "energy.toml", "log"))
    unit.write_text(render(find("senergyctld.service"), {}, lambda *_values: None))
    config.write_text(
        f'[controller]\nlisten = "127.0.0.1:0"\ndatabase = "{tmp_path}/energy.db"\n'
        f'policy_file = "{tmp_path}/run/policies"\n'
    )
    command = [sys.executable, str(SANDBOX), str(unit), sys.executable, "-m", "slurm_energy.controller.main"]
    with log.open("w") as output:
        daemon = subprocess.Popen([*command, "--config", str(config)], stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"listens on 127\.0\.0\.1:(\d+)", log.read_text())):
            assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/v1/status", timeout=30)
        assert (tmp_path / "run/policies").stat().st_mode & 0o777 == 0o644
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0
    assert not re.search(r"not permitted|ERROR|Traceback", log.read_text()), log.read_text()


def test_the_limits_are_felt(tmp_path: Path) -> None:
    """A forbidden system call really fails in the sandbox of the test.

    Therefore another test in this file can detect such calls of senergyd.
    """
    unit = tmp_path / "senergyd.service"
    unit.write_text(render(find("senergyd.service"), {}, lambda *_values: None))
    program = "import os\ntry:\n os.chown('.', 0, 0)\nexcept PermissionError: print('refused')"
    command = [sys.executable, str(SANDBOX), str(unit), sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "refused\n"
