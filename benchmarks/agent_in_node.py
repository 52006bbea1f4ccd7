"""Start of senergyd inside an emulated node, for benchmarks that run outside of the node.

The jobs of the node are announced to senergyd.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import peers

_START_S = 30.0


@contextlib.contextmanager
def agent_in_node(node: Any, settings: str, jobs: Sequence[Mapping[str, str]]) -> Iterator[tuple[Path, int]]:
    """Run senergyd and yield its socket and its process id once it has taken up all jobs.

    Args:
        node: the emulated node.
        settings: further lines of section `[agent]`.
        jobs: environment of the prolog of each job.

    Raises:
        peers.NotMeasuredError: senergyd does not answer, or refuses a job.
    """
    with tempfile.TemporaryDirectory(prefix="senergy-") as folder:
        config, path = Path(folder) / "energy.toml", Path(folder) / "agent.sock"
        config.write_text(
            f'[cluster]\ncontroller_url = "http://127.0.0.1:9"\n'
            f'[agent]\nsocket = "{path}"\nstate_dir = "{folder}/state"\n{settings}\n'
        )
        command, environment = peers.command_inside(
            node, sys.executable, "-m", "slurm_energy.agent.main", "--config", str(config)
        )
        waiting = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            for job in jobs:
                _begin(path, waiting, job)
            yield path, _children(waiting)[0]
        finally:
            for child in _children(waiting):
                os.kill(child, signal.SIGTERM)
            waiting.wait(30)


def _children(process: subprocess.Popen[bytes]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


def _begin(path: Path, agent: subprocess.Popen[bytes], job: Mapping[str, str]) -> None:
    """Announce a job to senergyd. Wait until senergyd answers.

    Raises:
        NotMeasuredError: senergyd does not answer in time, or refuses the job.
    """
    from slurm_energy.errors import UnavailableError
    from slurm_energy.protocol.agent_socket import ask_agent

    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and agent.poll() is None:
        try:
            response = ask_agent(path, {"op": "begin", "env": dict(job)})
        except UnavailableError:
            time.sleep(0.05)
            continue
        if not response.get("ok"):
            raise peers.NotMeasuredError(f"senergyd: {response}")
        return
    raise peers.NotMeasuredError("senergyd: does not answer")
