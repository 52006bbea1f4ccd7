"""Readings of a node's power settings and energy by tools independent of slurm-energy.

The tools, such as cpupower, run inside the node.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab_driver import LabDriver

_CPUPOWER = re.compile(r"CPU\s+\d+\s+(\d+) kHz.*?(\d+) kHz.*-\s+(\w+)\s*$")
_NVML = """
import json, pynvml as p
p.nvmlInit()
handles = [p.nvmlDeviceGetHandleByIndex(i) for i in range(p.nvmlDeviceGetCount())]
print(json.dumps([p.nvmlDeviceGetPowerManagementLimit(h) // 1000 for h in handles]))
"""
PYTHON = "python3"


@dataclass(frozen=True)
class Seen:
    """Settings of a node as independent tools show them.

    The settings are the distinct combinations (minimum kHz, maximum kHz, governor) of its CPUs, its RAPL
    limits in watts, and its GPU limits in watts.
    """

    cpus: frozenset[tuple[int, int, str]]
    package_watts: tuple[float, ...]
    gpu_watts: tuple[int, ...]


def settings(lab: LabDriver, node: str) -> Seen:
    """Read the power and frequency settings of a node with cpupower, powercap-info and pynvml."""
    return Seen(_cpupower(lab, node), _powercap(lab, node), _nvml(lab, node))


def settings_at_rest(lab: LabDriver, node: str) -> Seen:
    """Wait until senergyd has no job on a node, and return the settings of the node.

    The wait is necessary because an epilog waits at most a second for senergyd.
    """
    deadline = time.monotonic() + 60
    while jobs := agent_status(lab, node)["jobs"]:
        assert time.monotonic() < deadline, jobs
        time.sleep(0.1)
    return settings(lab, node)


def agent_status(lab: LabDriver, node: str) -> dict[str, Any]:
    """Return senergyd's response to `status`, as root gets it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(lab.layout.node_run(node) / "senergy" / "agent.sock"))
        connection.sendall(b'{"op":"status"}\n')
        with connection.makefile("rb") as lines:
            return json.loads(lines.readline())


def settings_in_time(lab: LabDriver, node: str, right: Callable[[Seen], bool]) -> Seen:
    """Wait at most a minute until a node has the right settings, and return the settings.

    `right` decides whether the settings are right. After a minute, the settings are returned in any case. A
    prolog waits at most a second for senergyd. If senergyd is busy for longer, the settings are applied
    after the job's script has begun.
    """
    deadline = time.monotonic() + 60
    while not right(seen := settings(lab, node)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return seen


def _cpupower(lab: LabDriver, node: str) -> frozenset[tuple[int, int, str]]:
    lines = lab.exec(node, "cpupower", "frequency-info", "-o").stdout.splitlines()
    found = [_CPUPOWER.match(line) for line in lines if line.startswith("CPU ")]
    assert found and all(found), lines
    return frozenset((int(m[1]), int(m[2]), m[3]) for m in found if m)


def _powercap(lab: LabDriver, node: str) -> tuple[float, ...]:
    watts = []
    for zone in range(2):
        argv = ["powercap-info", "intel-rapl", "-z", str(zone), "-c", "0", "-l"]
        done = lab.exec(node, *argv, check=False)
        if done.returncode == 0 and done.stdout.strip():
            watts.append(int(done.stdout) / 1e6)
    return tuple(watts)


def _nvml(lab: LabDriver, node: str) -> tuple[int, ...]:
    done = lab.exec(node, PYTHON, "-c", _NVML, check=False)
    return tuple(json.loads(done.stdout)) if done.returncode == 0 else ()


def acct(lab: LabDriver, *jobs: int, steps: bool = False) -> list[dict]:
    """Return the result of `senergy acct --json` for jobs, once all of their records have arrived."""
    selection = ",".join(map(str, jobs))
    deadline = time.monotonic() + 120  # senergyd's pauses grow to a minute while senergyctld is away
    while True:
        argv = ["senergy", "acct", "--json", "-j", selection, *([] if steps else ["-X"])]
        printed = json.loads(lab.run(*argv).stdout)["jobs"]
        found = [{**job, **job["energy"]} for job in printed if job["energy"]]
        known = {job["job_id"] for job in found if job["missing_nodes"] == 0}
        if known >= set(jobs):
            return found
        assert time.monotonic() < deadline, printed
        time.sleep(0.5)
