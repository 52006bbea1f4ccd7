"""Running lab: its nodes, daemons and environment, and the execution of commands on its nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_energy import config
from slurm_energy.errors import NotFoundError, UnavailableError
from slurm_energy_lab.cluster import processes
from slurm_energy_lab.cluster.artifacts import SYSTEM_PATH, Artifacts, find_artifacts
from slurm_energy_lab.cluster.configuration import merged, toml_document
from slurm_energy_lab.cluster.daemons import DaemonPlan, daemon_environment, steps
from slurm_energy_lab.cluster.layout import ENVIRONMENT_KEY, LabLayout
from slurm_energy_lab.cluster.processes import SupervisorClient
from slurm_energy_lab.cluster.specification import LabRecord, LabSpec, read_record
from slurm_energy_lab.cluster.startup import Startup, StartupStep, StepReport, ignore
from slurm_energy_lab.cluster.supervisor import DETACH

_IN_DIRECTORY = 'cd -- "$1" 2>/dev/null || cd /; shift; exec "$@"'


class Lab:
    """A running lab: a Slurm cluster with emulated power hardware on one machine.

    Attributes:
        layout: paths of the lab.
        record: specification and state of the lab.
    """

    def __init__(self, layout: LabLayout, record: LabRecord, lifeline_fd: int | None = None) -> None:
        self.layout = layout
        self.record = record
        self._lifeline_fd = lifeline_fd
        plan = DaemonPlan(layout, record.spec, artifacts_for(record.spec), record.ports)
        self._steps = {step.name: step for step in steps(plan)}

    @property
    def nodes(self) -> list[str]:
        """Return the names of the nodes."""
        return [node.name for node in self.record.spec.nodes]

    def detach(self) -> None:
        """Keep the lab running when this process ends.

        Without this call, the lab's processes end with this process.
        """
        if self._lifeline_fd is not None:
            os.write(self._lifeline_fd, DETACH)
            os.close(self._lifeline_fd)
            self._lifeline_fd = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a shell acts as a login node of the lab.

        A lab is a cluster of emulated nodes.
        """
        path = [str(Path(sys.executable).parent)]
        path += [*os.environ.get("PATH", "").split(":"), *SYSTEM_PATH.split(":")]
        return {
            ENVIRONMENT_KEY: str(self.layout.root),
            "SLURM_CONF": str(self.layout.slurm_conf),
            "SENERGY_CONFIG": str(self.layout.energy_toml),
            "PATH": ":".join(dict.fromkeys(entry for entry in path if entry)),
        }

    def exec_argv(self, node: str, argv: list[str], directory: Path | None = None) -> list[str]:
        """Return the command that runs the command `argv` inside a node.

        The command's working directory is `directory`. If `directory` is None, the caller's working directory
        is used.

        Raises:
            NotFoundError: the lab has no node of this name.
            UnavailableError: the node's supervisor does not run.
        """
        if node not in self.nodes:
            raise NotFoundError(f"node '{node}'", "not in this lab", f"nodes: {' '.join(self.nodes)}")
        pid = SupervisorClient(self.layout.supervisor_socket(node)).pid()
        if pid is None:
            raise UnavailableError(f"node '{node}'", "its supervisor has ended", "senergy lab down, then up")
        inner = ["/bin/sh", "-c", _IN_DIRECTORY, "sh", str(directory or Path.cwd()), *argv]
        return ["nsenter", "-t", str(pid), "-m", "-u", "-p", "--", *inner]

    def daemon_pid(self, daemon: str, node: str | None = None) -> int | None:
        """Return the process id of a daemon in the caller's PID namespace; None if the daemon does not run.

        Raises:
            NotFoundError: the lab has no daemon of this name.
        """
        step = self._step(daemon, node)
        client = SupervisorClient(self.layout.supervisor_socket(step.node))
        supervisor_pid = client.pid()
        if supervisor_pid is None:
            return None
        child = client.children().get(step.name)
        if child is None or child["exit"] is not None:
            return None
        return processes.host_pid(supervisor_pid, child["pid"])

    def set_energy(self, tables: Mapping[str, Any]) -> None:
        """Merge tables into energy.toml, and make senergyctld and the agents reload this file.

        Raises:
            ConfigError: the resulting file is not valid.
        """
        path = self.layout.energy_toml
        text = toml_document(merged(tomllib.loads(path.read_text()), tables))
        config.parse(text, path)
        path.write_text(text)
        for daemon, node in [("senergyctld", None), *(("senergyd", node) for node in self.nodes)]:
            if (pid := self.daemon_pid(daemon, node)) is not None:
                os.kill(pid, signal.SIGHUP)

    def start_daemon(self, daemon: str, node: str | None = None) -> None:
        """Start a daemon that has ended, and wait until it is ready.

        Raises:
            NotFoundError: the lab has no daemon of this name.
            StepError: the daemon does not start, for example because the daemon still runs.
        """
        self.startup([replace(self._step(daemon, node), needs=())]).run()

    def startup(self, chosen: list[StartupStep], report: StepReport = ignore) -> Startup:
        """Return an object that runs startup steps in this lab (cluster of emulated nodes)."""
        environment = daemon_environment(self.layout)
        return Startup(chosen, self._supervisor, environment, report)

    def steps(self) -> list[StartupStep]:
        """Return the steps that start the daemons and tasks of this lab (cluster of emulated nodes)."""
        return list(self._steps.values())

    def node_states(self) -> dict[str, str]:
        """Return Slurm's state of each node, such as `idle`; empty if slurmctld does not respond."""
        result = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "all", "-o", "%N %T"],
            env={**os.environ, **self.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
        pairs = (line.split() for line in result.stdout.splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def status(self) -> dict[str, Any]:
        """Return directory, ports, daemons and nodes of the lab as JSON-compatible data.

        The data contain the process id of each daemon, or None if the daemon does not run. For each node, the
        data contain Slurm's state of the node.
        """
        pids = {step.name: self.daemon_pid(step.name) for step in self.steps() if step.argv and step.ready}
        states = self.node_states() if pids["slurmctld"] else {}
        nodes = {}
        for node in self.record.spec.nodes:
            supervisor_pid = SupervisorClient(self.layout.supervisor_socket(node.name)).pid()
            own = {name: pid for name, pid in pids.items() if name.startswith(f"{node.name} ")}
            nodes[node.name] = {
                "profile": node.profile,
                "state": states.get(node.name),
                "daemons": {
                    "supervisor": supervisor_pid,
                    **{name.split()[1]: pid for name, pid in own.items()},
                },
            }
        return {
            "directory": str(self.layout.root),
            "started": self.record.started,
            "ports": dict(self.record.ports),
            "daemons": {name: pid for name, pid in pids.items() if " " not in name},
            "nodes": nodes,
        }

    def _supervisor(self, node: str | None) -> SupervisorClient:
        return SupervisorClient(self.layout.supervisor_socket(node))

    def _step(self, daemon: str, node: str | None) -> StartupStep:
        name = f"{node} {daemon}" if node else daemon
        if name not in self._steps:
            raise NotFoundError(f"daemon '{name}'", "not in this lab")
        return self._steps[name]


def artifacts_for(spec: LabSpec) -> Artifacts:
    """Return the built parts of slurm-energy, such as plugins, that a lab needs.

    A lab is a Slurm cluster of emulated nodes on one machine. `spec` is the specification of the lab. A
    lab of plain Slurm, without slurm-energy, needs no parts.
    """
    return find_artifacts() if spec.product else Artifacts()


def is_up(layout: LabLayout, record: LabRecord) -> bool:
    """Return whether the start of a lab was completed and the lab still runs.

    Only root can connect to the supervisor. For other users, the existence of the supervisor's socket counts
    as a running lab.
    """
    socket = layout.supervisor_socket(None)
    return record.complete and (
        SupervisorClient(socket).pid() is not None if os.geteuid() == 0 else socket.exists()
    )


def find_lab(layout: LabLayout) -> Lab:
    """Return the running lab in a directory.

    Raises:
        UnavailableError: no lab runs in this directory.
    """
    record = read_record(layout.record)
    if record is None or not is_up(layout, record):
        raise UnavailableError(f"no lab is up in {layout.root}", todo="senergy lab up")
    return Lab(layout, record)
