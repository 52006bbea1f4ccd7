"""Response time of senergyd for root, and its memory, while another user attacks its sockets.

The benchmark starts its own senergyd with a running job. The attacks are: 1,000 connections
that are held open, clients that never read, clients that write one byte per second, clients
that connect and close, clients that send requests without pause, and all of these together.
The attacks run one after the other. During each attack, root requests `status`, each time on a
new connection, at the root socket, as hooks do, and at the public socket. Root also begins and
ends jobs. Run the benchmark as root. Inside a node with counters (`senergy lab exec n1 ...`),
the agent has hardware to read.

Prints the lines `CLAIM NAME ratio=... target=<=1`. The ratio is
- for `hostile_answer`: the 95th percentile of root's waits under the worst attack over 100 ms;
- for `hostile_answer_public`: the same for the public socket;
- for `hostile_hook`: the same for begin and end of jobs;
- for `hostile_memory`: the agent's maximum resident memory over 64 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claims import publish

LIMIT_MS = 100.0
LIMIT_MB = 64.0
NOBODY = 65534
ATTACKS = Path(__file__).resolve().parent.parent / "tests/node/attacks.py"
ALONE = ("hold", "deaf", "slow", "flood", "ask")
TOGETHER = ("hold", "deaf", "slow", "flood", "flood", "ask")
JOB = {
    "SLURM_JOB_ID": "4294900001",
    "SLURM_JOB_UID": str(NOBODY),
    "SLURM_JOB_CPUS_PER_NODE": "1",
    "SPANK_ENERGY_POLICY": "monitor",
}
OTHER_JOB = {**JOB, "SLURM_JOB_ID": "4294900002", "SLURM_JOB_UID": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each attack (default 8)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("hostile.py: needs root, because it acts as root and as another user", file=sys.stderr)
        return 2
    with own_agent() as (path, pid):
        print(f"idle: {resident_mb(pid, 'VmRSS'):.1f} MB resident")
        waits = {"no attack": under_attack(path, (), 2.0)}
        waits |= {kind: under_attack(path, (kind,), arguments.seconds) for kind in ALONE}
        waits["all together"] = under_attack(path, TOGETHER, arguments.seconds)
        memory_mb = resident_mb(pid, "VmHWM")
        print(f"highest: {memory_mb:.1f} MB resident, {resident_mb(pid, 'VmRSS'):.1f} MB afterwards")
    claims = evaluate(waits, memory_mb)
    return publish(claims, arguments.json)


@contextlib.contextmanager
def own_agent() -> Iterator[tuple[str, int]]:
    """Run a separate senergyd with one job of the attacking user.

    Yield the path of its socket and its process id.
    """
    with tempfile.TemporaryDirectory(prefix="senergy-") as folder:
        Path(folder).chmod(0o711)
        config, path = Path(folder) / "energy.toml", f"{folder}/agent.sock"
        config.write_text(
            f'[cluster]\ncontroller_url = "http://127.0.0.1:9"\n'
            f'[agent]\nsocket = "{path}"\nstate_dir = "{folder}/state"\n'
        )
        command = [sys.executable, "-m", "slurm_energy.agent.main", "--config", str(config)]
        agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 30
            while not Path(path + ".root").exists():
                if agent.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("hostile.py: senergyd did not start")
                time.sleep(0.05)
            time.sleep(0.5)
            assert ask(path, {"op": "begin", "env": JOB})[1]["ok"]
            yield path, agent.pid
        finally:
            agent.terminate()
            agent.wait(30)


def under_attack(path: str, kinds: tuple[str, ...], seconds: float) -> dict[str, list[float]]:
    """Return root's waiting times in ms, by kind of request, during attacks of the given kinds.

    `door` is a status request at the root socket, `public` one at the public socket, and `hook`
    the begin or end of a job at the root socket.
    """
    command = [sys.executable, str(ATTACKS), path]
    tail = [str(seconds + 1), str(NOBODY), JOB["SLURM_JOB_ID"]]
    attackers = [
        subprocess.Popen([*command, kind, *tail], stdout=subprocess.PIPE, text=True) for kind in kinds
    ]
    time.sleep(1.0)
    waits: dict[str, list[float]] = {"door": [], "public": [], "hook": []}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        waits["door"].append(ask(path + ".root", {"op": "status"})[0])
        waits["public"].append(ask(path, {"op": "status"})[0])
        for operation in ("begin", "end"):
            wait_ms, response = ask(path + ".root", {"op": operation, "env": OTHER_JOB})
            assert response["ok"], response
            waits["hook"].append(wait_ms)
        time.sleep(0.02)
    received = [attacker.communicate(timeout=60)[0].strip() for attacker in attackers]
    for name, values in waits.items():
        print(f"{'+'.join(kinds) or 'no attack'}: {name}: {describe(values)}")
    print("    " + " ".join(received))
    return waits


def ask(path: str, message: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Send one request to senergyd over a new connection.

    Return the milliseconds from the connection attempt to the complete response, and the response.
    """
    started = time.perf_counter()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 30, 0))
        connection.connect(path)  # blocks in cases in which a time-out of Python's socket would not
        connection.settimeout(30)
        connection.sendall(json.dumps(message).encode() + b"\n")
        with connection.makefile("rb") as lines:
            response = json.loads(lines.readline())
    return (time.perf_counter() - started) * 1e3, response


def percentile_95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def describe(values: list[float]) -> str:
    return (
        f"{len(values)} answers, median {statistics.median(values):.1f} ms, "
        f"95th percentile {percentile_95(values):.1f} ms, longest {max(values):.1f} ms"
    )


def resident_mb(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kib) * 1024 / 1e6


def evaluate(waits: dict[str, dict[str, list[float]]], memory_mb: float) -> list[dict[str, Any]]:
    claims = []
    for claim, name in (("answer", "door"), ("answer_public", "public"), ("hook", "hook")):
        worst = {kind: round(percentile_95(result[name]), 3) for kind, result in waits.items()}
        ratio = max(worst.values()) / LIMIT_MS
        claims.append(verdict(f"hostile_{claim}", ratio) | {"percentile_95_ms": worst})
    return [*claims, verdict("hostile_memory", memory_mb / LIMIT_MB)]


def verdict(claim: str, ratio: float) -> dict[str, Any]:
    return {"claim": claim, "ratio": round(ratio, 4), "target": "<=1", "holds": ratio <= 1}


if __name__ == "__main__":
    sys.exit(main())
