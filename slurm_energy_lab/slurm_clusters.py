"""Several real Slurm clusters on this machine that share one slurmdbd, one MariaDB and one munge key.

Each cluster has a slurmctld and a slurmd with one node. The processes belong to the calling process and end
with `close`. Nodes have no emulated hardware: jobs that sleep suffice to observe where and when jobs start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.cluster import processes
from slurm_energy_lab.database_servers import MariadbServer

DEADLINE_S: Final = 120.0
"""Maximum wait for any state. It is generous, because the machine may be busy."""
COMMAND_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_RUNS_AS: Final = str(os.getuid())
_DATABASE: Final = "slurm_acct_db"
_SLURMDBD_CONF: Final = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc={database}
"""
_SLURM_CONF: Final = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
PlugStackConfig={directory}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={slurmdbd_port}
AccountingStoragePass={munge}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1
MpiDefault=none
ReturnToService=2
KillWait=1
MinJobAge=86400
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={slurmd_port} CPUs={cpus} RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""
PROGRAMS: Final = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch", "sacctmgr")


def missing_programs() -> list[str]:
    """Return the names of programs that are not installed."""
    return [name for name in PROGRAMS if not shutil.which(name, path=_search_path())]


class SlurmCluster:
    """One of several Slurm clusters that run together on this machine.

    Args:
        group: all clusters that run together, including this one.
        name: name of the cluster in Slurm.
        cpus: number of CPUs of the cluster's node.
        ports: ports of slurmctld, slurmd and senergyctld.

    Attributes:
        directory: directory for the cluster's files.
        controller_url: URL of the cluster's senergyctld.
        energy_toml: configuration file of the cluster's senergyctld.
    """

    def __init__(self, group: SlurmClusters, name: str, cpus: int, ports: Sequence[int]) -> None:
        self.group, self.name, self.cpus = group, name, cpus
        self.directory = group.directory / name
        self._slurmctld_port, self._slurmd_port, self._controller_port = ports
        self.controller_url = f"http://127.0.0.1:{self._controller_port}"
        self.energy_toml = self.directory / "energy.toml"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._write_files()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for Slurm commands on this cluster."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        return kept | {
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "PATH": _search_path(),
            "LC_ALL": "C.UTF-8",
            "SENERGY_CONFIG": str(self.energy_toml),
        }

    def run(self, *command: str, user: int | None = None, **environment: str) -> str:
        """Run a command with this cluster's configuration and return its standard output.

        Args:
            command: program and arguments.
            user: user id under which the command runs; None means the user id of this process.
            environment: further environment variables.

        Raises:
            UnavailableError: the command failed or timed out.
        """
        done = self.try_run(*command, user=user, **environment)
        if done.returncode:
            raise UnavailableError(" ".join(command), (done.stderr or done.stdout).strip()[-2000:])
        return done.stdout

    def try_run(
        self, *command: str, user: int | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as `run` does, but return the result even if the command failed."""
        prefix = [] if user is None else ["setpriv", f"--reuid={user}", "--clear-groups", "--"]
        try:
            return subprocess.run(
                [*prefix, *command],
                env=self.environment | environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(" ".join(command), f"no answer in {COMMAND_TIMEOUT_S:g} s") from None

    def start_slurm(self) -> None:
        """Start slurmctld and slurmd."""
        self.start("slurmctld", "slurmctld", "-D", "-f", f"{self.directory}/slurm.conf")
        self.start("slurmd", "slurmd", "-D", "-N", self.node, "-f", f"{self.directory}/slurm.conf")

    @property
    def node(self) -> str:
        """Name of the node."""
        return f"{self.name}1"

    def is_idle(self) -> bool:
        """Return whether slurmctld answers and the cluster's node is idle."""
        done = self.try_run("sinfo", "--local", "--noheader", "--Node", "--format=%T")
        return done.stdout.split() == ["idle"]

    def configure_controller(self, text: str) -> None:
        """Write the configuration of senergyctld.

        Args:
            text: TOML text that is appended to the sections `cluster` and `controller`, which this method
                writes.
        """
        self.energy_toml.write_text(
            f'[cluster]\nname = "{self.name}"\nmunge_socket = "{self.group.munge_socket}"\n'
            f'controller_url = "{self.controller_url}"\ncontroller_users = ["{_RUNS_AS}"]\n'
            f'[controller]\nlisten = "127.0.0.1:{self._controller_port}"\n'
            f'database = "{self.directory}/senergy.db"\npolicy_file = "{self.directory}/policies"\n'
            f'state_dir = "{self.directory}"\nagent_users = ["{_RUNS_AS}"]\noperators = ["{_RUNS_AS}"]\n'
            f"{text}\n"
        )
        self.energy_toml.chmod(0o644)

    def start_controller(self) -> None:
        """Start senergyctld."""
        self.start(
            *("senergyctld", sys.executable, "-m", "slurm_energy.controller.main"),
            *("--config", str(self.energy_toml)),
        )

    def start(self, name: str, *command: str) -> None:
        """Start a daemon of this Slurm cluster; its output is appended to a log file."""
        with (self.directory / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def end(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a daemon with a signal and wait for its end."""
        if daemon := self.daemons.pop(name, None):
            daemon.send_signal(number)
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(DEADLINE_S)

    def _write_files(self) -> None:
        group, directory = self.group, self.directory
        for folder in (directory, directory / "state", directory / "spool"):
            folder.mkdir()
        (directory / "slurm.conf").write_text(
            _SLURM_CONF.format(
                name=self.name,
                host=socket.gethostname(),
                port=self._slurmctld_port,
                munge=group.munge_socket,
                directory=directory,
                slurmdbd_port=group.slurmdbd_port,
                node=self.node,
                slurmd_port=self._slurmd_port,
                cpus=self.cpus,
            )
        )
        (directory / "plugstack.conf").write_text("")
        (directory / "cgroup.conf").write_text("CgroupAutomount=no\n")
        for path in directory.glob("*.conf"):
            path.chmod(0o644)


class SlurmClusters:
    """The clusters and their common services. Use this object in a `with` statement.

    Args:
        cpus: CPUs of the node of each cluster, by name of the cluster.
    """

    def __init__(self, cpus: dict[str, int]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="slcl-"))
        self.directory.chmod(0o755)
        self.munge_socket = self.directory / "munge.socket"
        self._munged: subprocess.Popen[bytes] | None = None
        self._slurmdbd: subprocess.Popen[bytes] | None = None
        self._database: MariadbServer | None = None
        self._held = _reserve_ports(1 + 3 * len(cpus))
        ports = [held.getsockname()[1] for held in self._held]
        self.slurmdbd_port = ports[0]
        self.clusters = {
            name: SlurmCluster(self, name, count, ports[1 + 3 * at : 4 + 3 * at])
            for at, (name, count) in enumerate(cpus.items())
        }

    def __enter__(self) -> SlurmClusters:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove all files."""
        for cluster in self.clusters.values():
            for name in ("senergyctld", "slurmd", "slurmctld"):
                cluster.end(name, signal.SIGTERM)
        _kill_steps(self.directory)
        for daemon in (self._slurmdbd, self._munged):
            if daemon is not None:
                daemon.terminate()
                daemon.wait(DEADLINE_S)
        if self._database is not None:
            self._database.close()
        for held in self._held:
            held.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __getitem__(self, name: str) -> SlurmCluster:
        return self.clusters[name]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds.

        Raises:
            UnavailableError: the condition does not hold within `DEADLINE_S`.
        """
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end_s:
                paths = sorted(self.directory.rglob("*.out"))
                logs = [f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in paths]
                raise UnavailableError(what, "\n".join(["not ready", *logs]))
            time.sleep(_POLL_S)

    def _start(self) -> None:
        self._start_munged()
        self._database = MariadbServer()
        self._start_slurmdbd(self._database)
        first = next(iter(self.clusters.values()))
        self.wait_for(lambda: first.try_run("sacctmgr", "-n", "list", "cluster").returncode == 0, "slurmdbd")
        for name in self.clusters:
            first.run("sacctmgr", "-i", "add", "cluster", name)
        first.run("sacctmgr", "-i", "add", "account", "site", "Description=site", "Organization=site")
        for cluster in self.clusters.values():
            cluster.start_slurm()
        for cluster in self.clusters.values():
            self.wait_for(cluster.is_idle, f"cluster {cluster.name}")

    def _start_munged(self) -> None:
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key-file": key, "socket": self.munge_socket}
        files |= {f"{name}-file": self.directory / f"munge.{name}" for name in ("pid", "log", "seed")}
        self._munged = subprocess.Popen(
            ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())],
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PATH": _search_path()},
        )
        self.wait_for(lambda: processes.accepts(self.munge_socket), "munged")

    def _start_slurmdbd(self, server: MariadbServer) -> None:
        conf = self.directory / "slurmdbd.conf"
        conf.write_text(
            _SLURMDBD_CONF.format(
                munge=self.munge_socket,
                host=socket.gethostname(),
                port=self.slurmdbd_port,
                directory=self.directory,
                database=_DATABASE,
            )
        )
        conf.chmod(0o600)
        with (self.directory / "slurmdbd.out").open("ab") as log:
            self._slurmdbd = subprocess.Popen(
                ["slurmdbd", "-D"],
                env=os.environ
                | {
                    "SLURM_CONF": str(self.directory / "slurm.conf"),
                    "MYSQL_UNIX_PORT": str(server.directory / "mariadb.sock"),
                    "PATH": _search_path(),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def _reserve_ports(count: int) -> list[socket.socket]:
    """Return sockets that reserve TCP ports. Only daemons that set SO_REUSEADDR can use these ports."""
    held = [socket.socket() for _ in range(count)]
    for probe in held:
        probe.bind(("127.0.0.1", 0))
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def _kill_steps(directory: Path) -> None:
    """Kill the processes of job steps that belong to the test clusters in a directory.

    They are recognized by an environment variable SLURM_CONF that names the directory.
    """
    mark = f"SLURM_CONF={directory}/".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
