"""Part `queue` of the benchmark scale.py: senergyctld with a long queue.

A real slurmctld has many nodes and pending jobs, and senergyctld reads and ranks them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import scale_agents
from claims import Claim, at_most
from process_figures import cpu_s, watched

ARRAY = 1000
LIMIT_CORES = 1.0
START_TIMEOUT_S = 60.0
_CONF = """\
ClusterName=cluster
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={munge}
CryptoType=crypto/munge
SlurmUser=root
StateSaveLocation={directory}/state-slurm
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SchedulerType=sched/backfill
ReturnToService=2
MaxJobCount=200000
MaxArraySize=100001
PriorityType=priority/multifactor
NodeName=node[00000-{last:05d}] NodeAddr=127.0.0.1 CPUs=64 RealMemory=256000 State=FUTURE
NodeName=front NodeAddr=127.0.0.1 CPUs=64 RealMemory=256000
PartitionName=batch Nodes=ALL Default=YES State=UP
"""


def measure(arguments: argparse.Namespace) -> list[Claim]:
    """Measure senergyctld with a long queue, and compare the results with targets.

    The result is a list of claims. A claim is a measured ratio with a target, and states whether the target
    is reached.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="senergy-", dir="/var/tmp")))
        started: dict[str, int] = {}
        conf = folder / "slurm.conf"

        def start_slurm(_: Path, munge_socket: Path) -> str:
            (folder / "state-slurm").mkdir()
            text = _CONF.format(port=16817, munge=munge_socket, directory=folder, last=arguments.nodes - 1)
            conf.write_text(text.replace("State=FUTURE", "State=CLOUD") if arguments.cloud else text)
            environment = os.environ | {"SLURM_CONF": str(conf)}
            with (folder / "slurmctld.out").open("wb") as output:
                daemon = subprocess.Popen(
                    ["slurmctld", "-D", "-f", str(conf)], env=environment, stdout=output, stderr=output
                )
            stack.callback(daemon.wait)
            stack.callback(daemon.kill)
            started["slurmctld"] = daemon.pid
            _wait_for_slurm(environment)
            _submit(environment, arguments.pending)
            return str(conf)

        tables = '[priority]\nmode = "portable"\n'
        with scale_agents.running_daemons(f"{folder}/senergy.db", start_slurm, tables) as daemons:
            environment = os.environ | {"SLURM_CONF": str(conf), "SENERGY_CONFIG": str(daemons.config)}
            processes = {"senergyctld": daemons.controller, "slurmctld": started["slurmctld"]}
            time.sleep(arguments.warm_s)
            rpcs = _rpcs(environment)
            with watched(processes) as window:
                time.sleep(arguments.seconds)
            size = f"{arguments.nodes} nodes, {arguments.pending} pending"
            print(f"queue: {size}: {scale_agents.describe(window)}")
            print(f"queue: RPCs per minute: {_difference(rpcs, _rpcs(environment), window.seconds)}")
            status = scale_agents.client(daemons).get("/v1/status")
            print(f"queue: priority: {status['priority']}")
            before_s = cpu_s(daemons.controller)
            begin_s = time.monotonic()
            done = subprocess.run(
                ["senergy", "prio"], env=environment, capture_output=True, text=True, check=False, timeout=300
            )
            lines = done.stdout.count("\n")
            used_s = cpu_s(daemons.controller) - before_s
            seconds = time.monotonic() - begin_s
            print(f"queue: senergy prio: {seconds:.2f} s, {used_s:.2f} CPU s in senergyctld, {lines} lines")
    return [at_most("scale_queue_cores", window.cores("senergyctld") / LIMIT_CORES, 1.0)]


def _wait_for_slurm(environment: dict[str, str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while subprocess.run(["scontrol", "ping"], env=environment, capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            raise SystemExit("scale.py: slurmctld does not start")
        time.sleep(0.5)


def _submit(environment: dict[str, str], pending: int) -> None:
    """Submit job arrays of `ARRAY` tasks each. All jobs stay pending, because no slurmd runs."""
    for _ in range(pending // ARRAY):
        command = ["sbatch", "-Q", f"--array=0-{ARRAY - 1}", "-c4", "-t60", "--wrap", "true"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)


def _rpcs(environment: dict[str, str]) -> dict[str, int]:
    """Return the number of RPCs by type since the start of slurmctld."""
    text = subprocess.run(["sdiag"], env=environment, capture_output=True, text=True, check=True).stdout
    return {name: int(count) for name, count in re.findall(r"^\s+(REQUEST_\w+).*?count:(\d+)", text, re.M)}


def _difference(before: dict[str, int], after: dict[str, int], seconds: float) -> dict[str, float]:
    changes = {name: (count - before.get(name, 0)) / seconds * 60 for name, count in after.items()}
    return {name: round(rate, 1) for name, rate in changes.items() if rate}
