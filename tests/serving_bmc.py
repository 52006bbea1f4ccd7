"""An emulated management controller (BMC) of a node, run as a separate process.

Tests of programs that read power from a BMC use it as their server. It is the BMC of the lab, the
software that emulates nodes.
"""

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
    """TCP or UDP ports of an emulated management controller (BMC) on 127.0.0.1.

    The kernel chooses the port numbers.
    """

    ipmi: int
    redfish: int


@contextlib.contextmanager
def serving_bmc(emulator: Path, password: Path) -> Iterator[Ports]:
    """Context manager that runs the emulated BMC of an emulated node.

    The BMC reports the power of the node by IPMI and Redfish. Its user is `operator`.

    Args:
        emulator: control socket of the node's emulator.
        password: file with the password.

    Yields:
        The ports of the BMC.
    """
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
