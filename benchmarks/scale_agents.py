"""Part `agents` of the benchmark scale.py: how many agents one senergyctld can serve.

Simulated agents send reports and deliver records to one senergyctld.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import store_rates
from claims import Claim, at_most
from process_figures import ProcessWindow, cpu_s, resident_mb, watched

from slurm_energy.agent.state.delivery import PERIOD_ROUTE, RECORD_ROUTE
from slurm_energy.errors import EnergyError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.live_reports import LIVE_PATH
from slurm_energy.slurm import munge

GENERATORS = 2
LIMIT_CORES, LIMIT_MB, PERIOD_S = 1.0, 2000.0, 3600.0
DRAIN_S = 240.0
MUNGE_ROUNDS = 2000


@dataclass
class Daemons:
    """Configuration file, munge socket and process ids of the daemons that a measurement uses.

    The daemons are munged and senergyctld.
    """

    config: Path
    munge_socket: Path
    munged: int
    controller: int


def measure(arguments: argparse.Namespace, store: str) -> list[Claim]:
    """Run the benchmark with one kind of database. Return its results about senergyctld as claims.

    A claim is a result that is compared with a target.
    """
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(store_rates.location(store))
        daemons = stack.enter_context(running_daemons(place))
        print(f"{store}: munge: " + munge_cost(daemons))
        generators = [start_generator(stack, daemons, arguments, number) for number in range(GENERATORS)]
        groups = {f"generator {number}": one.pid for number, one in enumerate(generators)}
        if server := server_pid(place):
            groups[store] = server
        processes = {"senergyctld": daemons.controller, "munged": daemons.munged}
        phases: dict[str, ProcessWindow] = {}
        begin_s = time.monotonic()
        for name, end_s in phase_ends(arguments):
            with watched(processes, groups) as window:
                time.sleep(max(0.0, begin_s + end_s - time.monotonic()))
            phases[name] = window
            print(f"{store}: {name}: {describe(window)}", flush=True)
        with watched(processes, groups) as window:
            outputs = [one.communicate(timeout=DRAIN_S + 120)[0] for one in generators]
        print(f"{store}: drained: {describe(window)}")
        highest_mb = resident_mb(daemons.controller, "VmHWM")
        stored = stored_counts(daemons)
    figures = merged([json.loads(text) for text in outputs])
    return evaluate(store, arguments, phases, figures, highest_mb, stored)


def phase_ends(arguments: argparse.Namespace) -> list[tuple[str, float]]:
    """Return the phases of the benchmark: name, and end in seconds after the start."""
    warm_s, burst_s = arguments.warm_s, arguments.warm_s + arguments.seconds
    return [("start", warm_s), ("steady", burst_s), ("full hour", burst_s + arguments.burst_s)]


def start_generator(
    stack: contextlib.ExitStack, daemons: Daemons, arguments: argparse.Namespace, number: int
) -> subprocess.Popen[str]:
    """Start a process that simulates a part of the agents.

    All agents close an accounting period at the end of the steady phase.
    """
    nodes = arguments.agents // GENERATORS
    burst_s = arguments.warm_s + arguments.seconds
    command = [
        *(sys.executable, "-m", "slurm_energy_lab.simulated_agents", "--config", str(daemons.config)),
        *("--nodes", str(nodes), "--first", str(number * nodes), "--threads", str(arguments.threads)),
        *("--live-s", str(arguments.live_s), "--job-s", str(arguments.job_s)),
        *("--periods-at", str(burst_s), "--seconds", str(burst_s + arguments.burst_s)),
        *("--drain-s", str(DRAIN_S)),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


@contextlib.contextmanager
def running_daemons(
    place: str, start_slurm: Callable[[Path, Path], str] | None = None, tables: str = ""
) -> Iterator[Daemons]:
    """Run munged and senergyctld with a database until the end of the `with` block.

    Args:
        place: location of the database.
        start_slurm: function that starts Slurm and returns the path of slurm.conf. It is called with a
            directory and munge's socket.
        tables: further text of energy.toml.
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
        munged = _run(stack, ["munged", "--foreground", "--force", *options], directory / "munged.log")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        config = directory / "energy.toml"
        config.write_text(
            f'[cluster]\nname = "cluster"\ncontroller_url = "http://127.0.0.1:{port}"\n'
            f'munge_socket = "{munge_socket}"\n[controller]\nlisten = "127.0.0.1:{port}"\n'
            f'database = "{place}"\nstate_dir = "{directory}/state"\n'
            f'policy_file = "{directory}/run/policies"\nrecord_hosts = "off"\nslurm_roles = false\n{tables}'
        )
        environment = dict(os.environ)
        if start_slurm is not None:
            environment["SLURM_CONF"] = start_slurm(directory, munge_socket)
        (directory / "state").mkdir()
        log = directory / "senergyctld.log"
        controller = _run(
            *(stack, [sys.executable, "-m", "slurm_energy.controller.main", "--config", str(config)], log),
            environment=environment,
        )
        stack.callback(lambda: print(_warnings(log), end=""))
        daemons = Daemons(config, munge_socket, munged, controller)
        _wait_until_ready(client(daemons), log)
        yield daemons


def _run(
    stack: contextlib.ExitStack, command: list[str], log: Path, environment: dict[str, str] | None = None
) -> int:
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    stack.callback(daemon.wait)
    stack.callback(daemon.send_signal, signal.SIGTERM)
    return daemon.pid


def _warnings(log: Path) -> str:
    """Return the lines of senergyctld's log above level INFO, at most ten."""
    lines = [line for line in log.read_text().splitlines() if " INFO " not in line]
    return "".join(f"    senergyctld: {line}\n" for line in lines[:10])


def client(daemons: Daemons) -> ControllerClient:
    """Return a client of the controller."""
    url = next(line for line in daemons.config.read_text().splitlines() if line.startswith("controller_url"))
    return ControllerClient(url.split('"')[1], daemons.munge_socket, 60.0)


def _wait_until_ready(one: ControllerClient, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            one.get("/v1/status")
            return
        except EnergyError:
            if time.monotonic() > deadline:
                raise SystemExit(f"scale.py: senergyctld does not start:\n{log.read_text()}") from None
            time.sleep(0.1)


def munge_cost(daemons: Daemons) -> str:
    """Measure the CPU time that a munge credential costs, and return it as text.

    The times for encoding and for decoding are stated separately, each for this process and for munged.
    """
    credentials: list[str] = []
    parts = []
    for name in ("encode", "decode"):
        own_s, munged_s = time.process_time(), cpu_s(daemons.munged)
        for number in range(MUNGE_ROUNDS):
            if name == "encode":
                credentials.append(munge.encode(b"x" * 150, daemons.munge_socket))
            else:
                munge.open_credential(credentials[number], daemons.munge_socket)
        own_ms = (time.process_time() - own_s) / MUNGE_ROUNDS * 1e3
        munged_ms = (cpu_s(daemons.munged) - munged_s) / MUNGE_ROUNDS * 1e3
        parts.append(f"{name} {own_ms:.3f} ms in the caller, {munged_ms:.3f} ms in munged")
    return "; ".join(parts)


def server_pid(place: str) -> int | None:
    """Return the process id of the server of a database location; None for a SQLite file."""
    if "://" not in place:
        return None
    host = place.partition("host=")[2].partition("&")[0].replace("%2F", "/")
    return int((Path(host) / "server.pid").read_text())


def stored_counts(daemons: Daemons) -> int:
    """Return the number of records in the database."""
    return int(client(daemons).get("/v1/status")["records"])


def merged(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the measured figures of all load generators: join lists, and add up numbers."""
    total: dict[str, Any] = {}
    for one in figures:
        for key, value in one.items():
            if isinstance(value, list):
                total.setdefault(key, []).extend(value)
                continue
            entry = total.setdefault(key, {})
            for name, item in value.items():
                entry[name] = entry[name] + item if name in entry else item
    return total


def evaluate(
    store: str,
    arguments: argparse.Namespace,
    phases: dict[str, ProcessWindow],
    figures: dict[str, Any],
    highest_mb: float,
    stored: int,
) -> list[Claim]:
    """Print the measured results with one database server, and compare them with targets.

    The result is a list of claims. A claim is a measured ratio with a target, and states whether the target
    is reached.
    """
    for path, lags in sorted(figures["lags_s"].items()):
        print(f"{store}: {path}: {len(lags)} deliveries, from hand-over to confirmation {quantiles(lags)}")
    print(f"{store}: {LIVE_PATH}: {len(figures['durations_s'])} requests {quantiles(figures['durations_s'])}")
    requests, sent = figures["requests"], figures["body_bytes"]
    for path, count in sorted(requests.items()):
        print(f"{store}: {path}: {count} requests, {sent[path] / count:.0f} bytes of body each")
    for error, count in sorted(figures["errors"].items(), key=lambda item: -item[1])[:10]:
        print(f"{store}: {count} x {error}")
    missing = sum(
        len(set(ids) - set(figures["confirmed"].get(path, [])))
        for path, ids in figures["handed_over"].items()
    )
    records = len(set(figures["confirmed"].get(RECORD_ROUTE.path, [])))
    print(f"{store}: {missing} items not confirmed, {records} records confirmed, {stored} stored")
    lag_s = max(max(lags) for lags in figures["lags_s"].values())
    cores = {name: window.cores("senergyctld") for name, window in phases.items()}
    details = {
        "agents": arguments.agents,
        "cores": {name: round(value, 3) for name, value in cores.items()},
        "max_mb": round(highest_mb, 1),
        "period_lag_s": max(figures["lags_s"].get(PERIOD_ROUTE.path, [0.0])),
    }
    return [
        at_most(f"scale_lag_{store}", lag_s / PERIOD_S, 1.0) | details,
        at_most(f"scale_cores_{store}", max(cores["steady"], cores["full hour"]) / LIMIT_CORES, 1.0),
        at_most(f"scale_memory_{store}", highest_mb / LIMIT_MB, 1.0),
        at_most(f"scale_missing_{store}", float(missing + abs(stored - records)), 0.0),
    ]


def describe(window: ProcessWindow) -> str:
    """Return one line of text with the resources that processes used in a phase of the benchmark."""
    cpu = ", ".join(f"{name} {window.cores(name):.3f}" for name in window.cpu_s)
    memory = ", ".join(f"{name} {mb:.0f} MB" for name, mb in window.max_mb.items())
    sockets = window.max_sockets.get("senergyctld", 0)
    rate = window.loopback_bytes / window.seconds / 1e3
    return f"{window.seconds:.0f} s, cores: {cpu}; {memory}; {sockets} sockets; {rate:.0f} kB/s"


def quantiles(values: list[float]) -> str:
    """Return the median, the 99th percentile and the maximum of durations in seconds, as text."""
    if not values:
        return "none"
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    return f"p50 {ordered[len(ordered) // 2]:.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s"
