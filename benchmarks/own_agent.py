"""A private senergyd for a benchmark inside an emulated node, on its own socket.

This module contains only the daemon and the messages to it; the benchmarks measure.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

JOB_ID = 4294900000
_DEADLINE_S = 30.0


class OwnAgent:
    """A running senergyd to which one job has been announced, for benchmarks.

    Attributes:
        folder: directory of this senergyd, with its socket, state and configuration.
        config: path of its energy.toml.
    """

    def __init__(self, folder: Path, sampling_hz: float) -> None:
        self.folder = folder
        self.config = folder / "energy.toml"
        self.path = folder / "agent.sock"
        self.config.write_text(
            f'[cluster]\ncontroller_url = "http://127.0.0.1:9"\n[agent]\nsocket = "{self.path}"\n'
            f'state_dir = "{folder}/state"\nsampling_hz = {sampling_hz:.6g}\n'
        )
        command = [sys.executable, "-m", "slurm_energy.agent.main", "--config", str(self.config)]
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(command, stderr=self._log, stdout=subprocess.DEVNULL)
        self._wait(lambda: self.ask({"op": "status"}))

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the response to a message, or None if the agent does not answer yet."""
        from slurm_energy.errors import UnavailableError
        from slurm_energy.protocol.agent_socket import ask_agent

        with contextlib.suppress(UnavailableError):
            return dict(ask_agent(self.path, dict(message)))
        return None

    def begin(self) -> None:
        """Announce a job to senergyd. The job has the whole node, and its energy policy only measures."""
        response = self.ask({"op": "begin", "env": job_environment()})
        if not response or not response.get("ok"):
            raise SystemExit(f"senergyd: {response}: {self.log()}")

    def end(self) -> None:
        """End the job."""
        self.ask({"op": "end", "env": job_environment()})

    def record(self) -> dict[str, Any]:
        """Return the record of the ended job."""

        def read() -> dict[str, Any] | None:
            for path in (self.folder / "state/spool").glob("*.json"):
                result: dict[str, Any] = json.loads(path.read_text())
                if result["step"] is None:
                    return result
            return None

        return self._wait(read)

    def log(self) -> str:
        """Return the log of the agent."""
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        """Stop the agent."""
        self._process.terminate()
        self._process.wait(_DEADLINE_S)
        self._log.close()

    def _wait(self, look: Any) -> dict[str, Any]:
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if result := look():
                return dict(result)
            time.sleep(0.05)
        raise SystemExit(f"senergyd does not answer: {self.log()}")


def job_environment() -> dict[str, str]:
    """Return the environment in which slurmd's prolog would run for the job."""
    node = socket.gethostname().partition(".")[0]
    return {
        "SLURMD_NODENAME": node,
        "SLURM_NODELIST": node,
        "SLURM_JOB_ID": str(JOB_ID),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": "root",
        "SLURM_JOB_CPUS_PER_NODE": "1024",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SPANK_ENERGY_POLICY": "monitor",
    }


@contextlib.contextmanager
def own_agent(sampling_hz: float = 1.0) -> Iterator[OwnAgent]:
    """Context manager that runs a senergyd of its own for a benchmark, and stops it at the end."""
    with tempfile.TemporaryDirectory(prefix="senergy-") as folder:
        agent = OwnAgent(Path(folder), sampling_hz)
        try:
            yield agent
        finally:
            agent.stop()
