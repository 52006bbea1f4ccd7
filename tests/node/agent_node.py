"""Fixture for tests: senergyd runs inside an emulated node, and tests can access it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab_node import INSIDE, LabNode

from slurm_energy.records import EnergyRecord
from slurm_energy_lab import client
from slurm_energy_lab.nvml_library import build_nvml

CPUFREQ = "/sys/devices/system/cpu/cpufreq"


class NodeAgent:
    """A senergyd that runs in an emulated node.

    Its socket and its state directory are outside of the emulated node, so that tests can reach them.
    """

    def __init__(
        self, node: LabNode, *, sampling_hz: float = 10.0, extra: str = "", under: Sequence[str] = ()
    ) -> None:
        self.node = node
        self.under = list(under)  # a command prefix
        # A socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="senergyd-"))
        self.socket = self.folder / "agent.sock"
        self.config = self.folder / "energy.toml"
        self.config.write_text(
            f'[cluster]\ncontroller_url = "http://127.0.0.1:9"\n[agent]\nsocket = "{self.socket}"\n'
            f'state_dir = "{self.folder}/state"\nsampling_hz = {sampling_hz}\n{extra}'
        )
        build_nvml(node.libraries)
        self.process: subprocess.Popen[bytes] | None = None
        self.cpus = len(_cpu_list(node.read("/sys/devices/system/cpu/online")))

    def start(self) -> NodeAgent:
        """Start senergyd and wait until it responds."""
        command = [sys.executable, str(INSIDE), str(self.node.tree), str(self.node.stage), "0"]
        command += [
            *self.under,
            sys.executable,
            "-m",
            "slurm_energy.agent.main",
            "--config",
            str(self.config),
        ]
        environment = {**os.environ, "LD_LIBRARY_PATH": "/run/senergy-lab/lib"}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            try:
                self.ask(op="status")
                return self
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"senergyd does not answer: {self.log()}")

    def pid(self) -> int:
        """Return the process id of senergyd.

        The process that the test has started is not senergyd itself. It only waits for senergyd.
        """
        assert self.process is not None
        waiting = self.process.pid
        return int(Path(f"/proc/{waiting}/task/{waiting}/children").read_text().split()[0])

    def pause(self) -> None:
        """Pause senergyd until the method `go_on` is called.

        Return when all threads of senergyd have stopped.
        """
        pid = self.pid()
        assert pid, "senergyd is gone"
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 120
        while any(state not in "TtZX" for state in _states(pid)):
            assert time.monotonic() < deadline, "senergyd does not stop"
            time.sleep(0.001)

    def go_on(self) -> None:
        os.kill(self.pid(), signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End senergyd."""
        if self.process is not None:
            if self.process.poll() is None:
                os.kill(self.pid(), number)
            self.process.wait(timeout=60)
            self.process = None

    def remove(self) -> None:
        """End senergyd and remove its files."""
        self.stop(signal.SIGKILL)
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.folder.rmdir()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ask(self, **message: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(120)
            connection.connect(str(self.socket))
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as lines:
                return json.loads(lines.readline())

    def begin(self, job_id: int, **flags: str) -> dict[str, Any]:
        answer = self.ask(op="begin", env=self.env(job_id, **flags))
        assert answer["ok"], answer
        return answer

    def end(self, job_id: int) -> EnergyRecord:
        """End a job and return its energy record.

        The id of the job may have been used by an earlier job.
        """
        earlier = self.record_ids()
        assert self.ask(op="end", env=self.env(job_id))["known"]
        return self.new_record(earlier)

    def record_ids(self) -> set[str]:
        return {record.record_id for record in self.records()}

    def new_record(self, earlier: set[str]) -> EnergyRecord:
        """Wait until an ended job has its energy record, and return this record.

        Args:
            earlier: ids of the records that existed before.
        """
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for record in self.records():
                if record.record_id not in earlier and record.step is None:
                    return record
            time.sleep(0.02)
        raise AssertionError(f"no new record: {self.log()}")

    def wait_for_log(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + 60
        while self.log().count(text) < times:
            assert time.monotonic() < deadline, f"never: {text}: {self.log()}"
            time.sleep(0.02)

    def sampled_s(self, job_id: int) -> float:
        """Take a sample now and return its time in seconds since boot."""
        return self.ask(op="energy", job_id=job_id, fresh=True)["sampled_s"]

    def env(self, job_id: int, **flags: str) -> dict[str, str]:
        return {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": "0",
            "SLURM_JOB_CPUS_PER_NODE": str(self.cpus),
            "SLURM_NODELIST": "n1",
            "SLURMD_NODENAME": "n1",
            **{f"SPANK_ENERGY_{name.upper()}": value for name, value in flags.items()},
        }

    def items(self) -> list[dict[str, Any]]:
        """Return the energy records in the agent's spool, each with its power trace.

        The trace of a record without a power trace is None.
        """
        found = []
        for path in sorted((self.folder / "state/spool").glob("*.json")):
            trace = path.with_suffix(".trace")
            found.append(
                {
                    "record": json.loads(path.read_text()),
                    "trace": json.loads(trace.read_text()) if trace.exists() else None,
                }
            )
        return found

    def records(self) -> list[EnergyRecord]:
        return [EnergyRecord.from_json(item["record"]) for item in self.items()]

    def truth(self) -> dict[str, Any]:
        return client.truth(self.node.socket)

    def settings(self) -> dict[str, str]:
        """Return every value that a policy may change, as files and NVML report it."""
        root = self.node.tree
        paths = [
            *sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_m*_freq")),
            *sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_governor")),
            *sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*/energy_performance_preference")),
            *sorted((root / "sys/devices/virtual/powercap").rglob("constraint_0_*_u[ws]")),
            *sorted((root / "sys/devices/virtual/powercap").rglob("enabled")),
        ]
        found = {str(path.relative_to(root)): path.read_text().strip() for path in paths}
        found["gpus"] = self.node.python(GPU_STATE).strip() if self.gpus() else ""
        return found

    def gpus(self) -> int:
        return len(list((self.node.tree / "dev").glob("nvidia[0-9]*")))

    def policy(self, number: int, name: str) -> str:
        return self.node.read(f"{CPUFREQ}/policy{number}/{name}")


GPU_STATE = """
import json, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
limits = [n.nvmlDeviceGetPowerManagementLimit(g) for g in gpus]
print(json.dumps([[limit, n.nvmlDeviceGetPersistenceMode(g)] for limit, g in zip(limits, gpus)]))
"""


def _states(pid: int) -> list[str]:
    """Return the state of each thread of a process, a letter of proc_pid_stat(5)."""
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            states.append((task / "stat").read_text().rpartition(") ")[2][0])
    return states


def _cpu_list(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))
