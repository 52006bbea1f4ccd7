"""Benchmark of the time that the hook adds to the begin or the end of a job.

A call of senergy-hook is compared with a hook that runs `sh -c 'exit 0'`. Three commands take turns:
sh, senergy-hook for the begin of a job, and senergy-hook for the end of a job. The policy of the jobs
changes no setting. All commands are spawned as slurmd spawns them. By default a minimal server
answers the hook. With `--socket PATH`, a running senergyd answers. Use this option only on a node of
a lab, as root, because each pair of calls leaves the record of a job that never existed.

Prints `CLAIM hook_call ratio=... target=<=2 holds=yes|no`. The ratio is the median time of begin or
end, whichever is slower, divided by the median time of sh.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from claims import Claim, at_most, publish

TARGET = 2.0
WARM_UP_ROUNDS = 20
FIRST_JOB_ID = 4_000_000_000
HOOK_DIR = Path(__file__).resolve().parent.parent / "prolog_epilog"
ANSWER = b'{"ok": true, "policy": "monitor", "applied": 0, "failed": 0}\n'
JOB = {
    "SLURM_CLUSTER_NAME": "benchmark",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_JOB_CPUS_PER_NODE": "64",
    "SLURM_JOB_GID": "1000",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_PARTITION": "all",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_WORK_DIR": "/home/alice/project/run",
    "SLURM_NODELIST": "node[001-004]",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "SLURM_UID": "1000",
    "SLURMD_NODENAME": "node001",
    "SPANK_ENERGY_POLICY": "monitor",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400, help="calls of each command (default 400)")
    parser.add_argument("--socket", help="socket of a running senergyd instead of the minimal server")
    parser.add_argument("--json", metavar="FILE", help="also write the claim to FILE as JSON")
    parser.add_argument("--serve", metavar="PATH", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return 0
    hook = build_hook()
    with contextlib.nullcontext(arguments.socket) if arguments.socket else minimal_server() as path:
        times = measure(str(hook), path, arguments.rounds)
    return publish([evaluate(times)], arguments.json)


async def serve(path: str) -> None:
    """Act as an agent for the benchmark: answer every line on a Unix socket until killed."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            json.loads(line)
            writer.write(ANSWER)
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(respond, path, backlog=128)
    await server.serve_forever()


@contextlib.contextmanager
def minimal_server() -> Iterator[str]:
    """Run a minimal server in a separate process, as a lower bound of the time of an answer.

    The context manager yields the path of the server's socket.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/agent.sock"
        server = subprocess.Popen([sys.executable, __file__, "--serve", path])
        try:
            while not Path(path).exists():
                if server.poll() is not None:
                    raise SystemExit("hook.py: the minimal server did not start")
                time.sleep(0.01)
            yield path
        finally:
            server.terminate()
            server.wait(10)


def build_hook() -> Path:
    subprocess.run(["make", "--silent", "-C", str(HOOK_DIR)], check=True, timeout=120)
    return HOOK_DIR / "senergy-hook"


def measure(hook: str, socket_path: str, rounds: int) -> dict[str, list[float]]:
    """Measure the seconds of three commands: `sh`, the hook with `begin`, and the hook with `end`.

    The three commands are called in turn, so that noise affects all of them alike.
    """
    times: dict[str, list[float]] = {"sh": [], "begin": [], "end": []}
    for index in range(-WARM_UP_ROUNDS, rounds):
        job = str(FIRST_JOB_ID + index + WARM_UP_ROUNDS)
        environment = JOB | {"SLURM_JOB_ID": job, "SLURM_JOBID": job}
        for name in times:
            command = ["/bin/sh", "-c", "exit 0"] if name == "sh" else [hook, name, "--socket", socket_path]
            seconds = spawn(command, environment)
            if index >= 0:
                times[name].append(seconds)
    return times


def spawn(command: list[str], environment: dict[str, str]) -> float:
    """Run one command and return the seconds that it takes.

    The benchmark ends with an error if the command fails or writes to its standard error.
    """
    read_end, write_end = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, write_end, 2)]
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - start
    os.close(write_end)
    complaint = os.read(read_end, 1000).decode(errors="replace")
    os.close(read_end)
    if status or complaint:
        raise SystemExit(f"hook.py: {command[0]}: status {status}: {complaint.strip()}")
    return seconds


def evaluate(times: dict[str, list[float]]) -> Claim:
    """Print medians and quartiles of the call times, and check the slowest hook call.

    Return the claim (ratio, target, and whether the ratio meets the target).
    """
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        low, _, high = statistics.quantiles(values, n=4)
        print(
            f"{name:<6} median {medians[name] * 1e3:.3f} ms, quartiles {low * 1e3:.3f} to {high * 1e3:.3f} ms"
        )
    ratio = max(medians["begin"], medians["end"]) / medians["sh"]
    return at_most("hook_call", ratio, TARGET) | {
        "median_ms": {name: round(value * 1e3, 4) for name, value in medians.items()},
        "calls": len(times["sh"]),
    }


if __name__ == "__main__":
    sys.exit(main())
