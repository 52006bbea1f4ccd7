"""Life cycle of a lab: start and removal. Both lock the lab's directory."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from slurm_energy.errors import AlreadyRunningError, UsageError
from slurm_energy.slurm import plugin_build
from slurm_energy.trusted_files import check_folder
from slurm_energy_lab.cluster import configuration, processes
from slurm_energy_lab.cluster.artifacts import require_machine
from slurm_energy_lab.cluster.daemons import daemon_environment, lab_mounts, node_mounts
from slurm_energy_lab.cluster.lab import Lab, artifacts_for, is_up
from slurm_energy_lab.cluster.layout import ENVIRONMENT_KEY, LabLayout
from slurm_energy_lab.cluster.specification import LabRecord, LabSpec, read_record
from slurm_energy_lab.cluster.startup import StartupStep, StepError, StepReport, ignore
from slurm_energy_lab.cluster.teardown import teardown
from slurm_energy_lab.model import load_profile

_PRIVATE, _PUBLIC, _SHARED = 0o700, 0o755, 0o1777
_BASHRC = """[ -f ~/.bashrc ] && . ~/.bashrc
PATH=$SENERGY_LAB_PATH
PS1='(lab) \\w\\$ '
"""
_FIRST_PORT, _PORT_SPREAD = 17000, 12000


def up(layout: LabLayout, spec: LabSpec, report: StepReport = ignore) -> Lab:
    """Start a lab.

    If the start fails, remove everything that was started.

    Args:
        layout: paths of the lab.
        spec: specification of the lab.
        report: function called with each finished startup step and the duration of the step in seconds.

    Returns:
        The lab. The lab ends with this process unless `Lab.detach()` is called.

    Raises:
        AlreadyRunningError: a lab already runs in the directory, or another command is starting or removing
            it.
        ConfigError: other users could replace files in the directory.
        StepError: a daemon failed; the error contains the last lines of the daemon's log.
        UnavailableError: the specification requests the priority plugin, and the plugin cannot be built.
    """
    require_machine()
    if spec.priority == "plugin":
        plugin_build.ensure_built()
    profiles = {node.name: load_profile(node.profile, node.overrides) for node in spec.nodes}
    with _locked(layout), _ports(layout, spec) as ports:
        _clear(layout)
        try:
            nodes = [
                configuration.slurm_node(n, ports[f"slurmd.{n}"], profile) for n, profile in profiles.items()
            ]
            texts = configuration.render(layout, spec, artifacts_for(spec), ports, nodes)
            record = LabRecord(spec, ports, time.time(), os.getpid())
            record.write(layout.record)
            _make_directories(layout, spec)
            configuration.write(texts)
            return _start(Lab(layout, record, _start_supervisor(layout)), report)
        except BaseException:
            teardown(layout)
            raise


def _start(lab: Lab, report: StepReport) -> Lab:
    daemon_steps = lab.steps()
    lab.startup([*daemon_steps, _all_idle(lab, daemon_steps)], report).run()
    lab.record = replace(lab.record, complete=True)
    lab.record.write(lab.layout.record)
    return lab


def running_lab(layout: LabLayout) -> Lab | None:
    """Return the lab (cluster of emulated nodes) that runs in a directory; None if none runs there."""
    record = read_record(layout.record)
    return Lab(layout, record) if record and is_up(layout, record) else None


def down(layout: LabLayout) -> bool:
    """Remove a lab (cluster of emulated nodes), whether its start was completed or not.

    Return whether there was a lab.

    Raises:
        AlreadyRunningError: another command is starting or removing the lab.
        UsageError: the directory is not the directory of a lab.
        ConfigError: other users could replace files in the directory.
    """
    if not layout.root.exists() and not processes.lab_processes(layout.root):
        return False
    with _locked(layout):
        _refuse_foreign(layout)
        teardown(layout)
    return True


def _clear(layout: LabLayout) -> None:
    """Remove the remains of a lab that was not removed with `down`. A new lab can then start."""
    record = read_record(layout.record)
    if record and is_up(layout, record):
        names = " ".join(node.name for node in record.spec.nodes)
        raise AlreadyRunningError(f"a lab is up in {layout.root}", f"nodes {names}", "senergy lab down")
    _refuse_foreign(layout)
    teardown(layout, keep_directory=True)
    layout.root.chmod(_PUBLIC)


def _refuse_foreign(layout: LabLayout) -> None:
    if not layout.record.exists() and any(layout.root.iterdir()):
        raise UsageError(f"{layout.root}", "not empty and not a lab's", f"choose another ${ENVIRONMENT_KEY}")


@contextmanager
def _locked(layout: LabLayout) -> Iterator[None]:
    """Lock the lab's directory for the duration of this context, without a lock file."""
    layout.root.mkdir(parents=True, exist_ok=True)
    check_folder(layout.root)  # another user may have created it meanwhile
    handle = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise AlreadyRunningError(f"{layout.root}", "another senergy lab up or down is in progress") from None
    finally:
        os.close(handle)


@contextmanager
def _ports(layout: LabLayout, spec: LabSpec) -> Iterator[dict[str, int]]:
    """Reserve a free TCP port for each daemon while this context lasts.

    Yield the ports by the daemons' names.
    """
    names = ["slurmctld", "senergyctld", *(f"slurmd.{node.name}" for node in spec.nodes)]
    if spec.accounting:
        names.append("slurmdbd")
    start = _FIRST_PORT + zlib.crc32(str(layout.root).encode()) % _PORT_SPREAD
    sockets = processes.reserve_ports(len(names), start)
    try:
        yield {name: probe.getsockname()[1] for name, probe in zip(names, sockets, strict=True)}
    finally:
        processes.release(sockets)


def _make_directories(layout: LabLayout, spec: LabSpec) -> None:
    modes = {
        layout.etc: _PUBLIC,
        layout.lib: _PUBLIC,
        layout.log: _PUBLIC,
        layout.supervisor_socket(None).parent: _PUBLIC,
        layout.stage: _PRIVATE,
        layout.munge_socket.parent: _PUBLIC,
        layout.database_socket.parent: _PRIVATE,
        layout.state: _PRIVATE,
        layout.state / "slurmctld": _PRIVATE,
        layout.state / "senergyctld": _PRIVATE,
        layout.agent_state: _PRIVATE,
        layout.slurm_plugins: _PUBLIC,
        layout.priority_table.parent: _PUBLIC,
        layout.queue_table.parent: _PUBLIC,
        layout.root / "nodes": _PUBLIC,
    }
    for node in spec.nodes:
        own = layout.node(node.name)
        modes |= {own: _PUBLIC, own / "tmp": _SHARED}  # PMIx needs a directory of each node
        modes |= {own / "state": _PRIVATE, own / "stage": _PRIVATE, own / "spool": _PUBLIC}
        modes |= {layout.tree(node.name): _PUBLIC, layout.node_run(node.name): _PUBLIC}
        modes |= {layout.node_run(node.name) / name: _PUBLIC for name in ("senergy", "senergy-lab")}
    for path, mode in modes.items():
        path.mkdir()
        path.chmod(mode)
    for node in spec.nodes:
        (layout.node(node.name) / "hostname").write_text(f"{node.name}\n")
        layout.view(node.name).write_text(json.dumps(node_mounts(layout, node.name, spec)))
    layout.view(None).write_text(json.dumps(lab_mounts(layout)))
    (layout.etc / "bashrc").write_text(_BASHRC)
    key = layout.etc / "munge.key"
    key.touch(0o400)
    key.write_bytes(os.urandom(1024))
    (layout.etc / "ld.so.conf").write_text(f"{layout.lib}\ninclude /etc/ld.so.conf\n")


def _start_supervisor(layout: LabLayout) -> int:
    """Start the supervisor of the lab's daemons and return the write end of its lifeline pipe.

    If the pipe is closed before the caller writes `DETACH` to it, the lab ends.
    """
    reader, writer = os.pipe()
    log = layout.log / "supervisor.log"
    argv = [
        sys.executable,
        "-m",
        "slurm_energy_lab.cluster.supervisor",
        "--socket",
        str(layout.supervisor_socket(None)),
    ]
    argv += ["--host-name", "controller", "--view", str(layout.view(None)), "--lifeline-fd", str(reader)]
    try:
        with log.open("ab") as output:
            result = subprocess.run(
                argv,
                env=daemon_environment(layout),
                pass_fds=(reader,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                timeout=30,
                check=False,
            )
    finally:
        os.close(reader)
    if result.returncode != 0:
        os.close(writer)
        raise StepError(StartupStep("supervisor", log), f"ended with exit code {result.returncode}")
    return writer


def _all_idle(lab: Lab, daemon_steps: list[StartupStep]) -> StartupStep:
    idle_states = dict.fromkeys(lab.nodes, "idle")
    return StartupStep(
        "nodes idle",
        lab.layout.log / "slurmctld.log",
        needs=tuple(step.name for step in daemon_steps),
        ready=lambda: lab.node_states() == idle_states,
    )
