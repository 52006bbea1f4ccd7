"""The lab's management controller in a process of its own, for tests of its clients."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

START_S = 30


class Ports(NamedTuple):
    """Ports of the controller on 127.0.0.1, chosen by the kernel."""

    ipmi: int
    redfish: int


@contextlib.contextmanager
def serving_bmc(emulator: Path, password: Path) -> Iterator[Ports]:
    """Serve the power of an emulated node to the user `operator`."""
    pytest.importorskip("slurm_energy_lab.bmc", reason="pyghmi is not installed", exc_type=ImportError)
    command = [sys.executable, "-m", "slurm_energy_lab.bmc", "--emulator", str(emulator)]
    command += ["--ipmi-port", "0", "--redfish-port", "0", "--password-file", str(password)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready, _, _ = select.select([process.stdout], [], [], START_S)
            assert ready, "the BMC does not come up"
            ports = json.loads(process.stdout.readline())
            yield Ports(ports["ipmi_port"], ports["redfish_port"])
        finally:
            process.kill()
