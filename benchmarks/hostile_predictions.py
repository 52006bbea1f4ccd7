"""Run time of an operator's `senergy status` while 24 clients of a user request predictions.

Starts its own munged and senergyctld. The clients run as an unprivileged user. Each request
has a body of 1,000 prediction requests and nearly 1 MiB. A client sends the next request as
soon as the preceding one got any response. Meanwhile root runs the whole command `senergy
status` repeatedly. Run this benchmark as root.

Prints two lines. `CLAIM hostile_predictions_status ratio=... target=<=1`: the 95th percentile
of root's times, divided by 0.5 s. `CLAIM hostile_predictions_memory`: senergyctld's maximum
resident memory, divided by 200 MB. The times without an attack are printed for comparison. The
start of Python takes most of these times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claims import at_most, publish

from slurm_energy.errors import EnergyError
from slurm_energy.protocol.controller_client import ControllerClient

LIMIT_S = 0.5
LIMIT_MB = 200.0
CLIENTS, PROCESSES = 24, 4
NOBODY = 65534


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the attack (default 20)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print(
            "hostile_predictions.py: needs root, because it acts as root and as another user", file=sys.stderr
        )
        return 2
    with own_controller() as (config, url, munge_socket, pid):
        alone = status_times(config, min(5.0, arguments.seconds))
        print(f"no attack: {describe(alone)}")
        with attack(url, munge_socket) as answers:
            time.sleep(2.0)
            under = status_times(config, arguments.seconds)
        memory_mb = highest_resident_mb(pid)
    print(f"{CLIENTS} clients: {describe(under)}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"    responses to the clients: {dict(answers)}; senergyctld at most {memory_mb:.0f} MB")
    figures = {"alone_s": summary(alone), "attacked_s": summary(under), "clients_answers": dict(answers)}
    claims = [
        at_most("hostile_predictions_status", percentile_95(under) / LIMIT_S, 1) | figures,
        at_most("hostile_predictions_memory", memory_mb / LIMIT_MB, 1) | {"resident_mb": memory_mb},
    ]
    return publish(claims, arguments.json)


@contextlib.contextmanager
def own_controller() -> Iterator[tuple[Path, str, Path, int]]:
    """Run munged and senergyctld.

    Yields the configuration, the address, munged's socket and senergyctld's process id.
    """
    with tempfile.TemporaryDirectory(prefix="senergy-") as folder, contextlib.ExitStack() as stack:
        directory = Path(folder)
        directory.chmod(0o755)
        key, munge_socket = directory / "munge.key", directory / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key-file": key, "socket": munge_socket}
        files |= {f"{name}-file": directory / f"munge.{name}" for name in ("pid", "log", "seed")}
        options = [f"--{name}={path}" for name, path in files.items()]
        run(stack, ["munged", "--foreground", "--force", *options])
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        url, config = f"http://127.0.0.1:{port}", directory / "energy.toml"
        config.write_text(
            f'[cluster]\ncontroller_url = "{url}"\nmunge_socket = "{munge_socket}"\n[controller]\n'
            f'listen = "127.0.0.1:{port}"\ndatabase = "{directory}/senergy.db"\n'
            f'policy_file = "{directory}/run/policies"\n'
        )
        command = [sys.executable, "-m", "slurm_energy.controller.main", "--config", str(config)]
        pid = run(stack, command).pid
        client, deadline = ControllerClient(url, munge_socket), time.monotonic() + 60
        while True:
            try:
                client.get("/v1/status")
                break
            except EnergyError as error:
                if time.monotonic() > deadline:
                    raise SystemExit(f"hostile_predictions.py: {error}") from None
                time.sleep(0.1)
        yield config, url, munge_socket, pid


def run(stack: contextlib.ExitStack, command: list[str]) -> subprocess.Popen[bytes]:
    daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(daemon.wait)
    stack.callback(daemon.terminate)
    return daemon


@contextlib.contextmanager
def attack(url: str, munge_socket: Path) -> Iterator[Counter[str]]:
    """Context manager that runs attacking clients, which send requests without a pause.

    It yields a counter, which receives the number of responses of each kind at the end.
    """
    request = {"user": "nobody", "name": "a" * 900, "time_limit_s": 3600.0, "nodes": 1}
    body = {"requests": [request] * 1000}
    counts: Counter[str] = Counter()
    children = []
    for _ in range(PROCESSES):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            ask_without_pause(url, munge_socket, body, write)
        os.close(write)
        children.append((child, read))
    try:
        yield counts
    finally:
        for child, _ in children:
            os.kill(child, signal.SIGTERM)
        for child, read in children:
            with os.fdopen(read, "rb") as received:
                counts.update(json.loads(received.read() or b"{}"))
            os.waitpid(child, 0)


def ask_without_pause(url: str, munge_socket: Path, body: dict[str, Any], write: int) -> None:
    """Become the unprivileged user and send requests from several threads until SIGTERM; never returns."""
    counts: Counter[str] = Counter()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)

    def ask() -> None:
        client = ControllerClient(url, munge_socket, timeout_s=60)
        while not ended.is_set():
            try:
                client.post("/v1/predict", body)
                counts["answered"] += 1
            except EnergyError as error:
                counts["busy" if "in progress" in str(error) else str(error)[-60:]] += 1

    for _ in range(CLIENTS // PROCESSES):
        threading.Thread(target=ask, daemon=True).start()
    ended.wait()
    os.write(write, json.dumps(counts).encode())
    os._exit(0)


def status_times(config: Path, seconds: float) -> list[float]:
    """Run `senergy status` repeatedly; return the seconds of each run."""
    command = [sys.executable, "-m", "slurm_energy.cli.main", "status", "--json", "--config", str(config)]
    times: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(times) < 5:
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        times.append(time.perf_counter() - began)
        assert "records" in json.loads(done.stdout)["controller"], done.stdout + done.stderr
    return times


def percentile_95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def summary(values: list[float]) -> dict[str, float]:
    figures = {
        "median": statistics.median(values),
        "percentile_95": percentile_95(values),
        "max": max(values),
    }
    return {name: round(value, 3) for name, value in figures.items()}


def describe(values: list[float]) -> str:
    received = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in summary(values).items())
    return f"{len(values)} times senergy status, {received}"


def highest_resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
