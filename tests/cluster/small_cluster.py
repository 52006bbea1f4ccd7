"""A small temporary Slurm cluster for tests of the C plugins, and a substitute for senergyd.

The substitute records the messages that it receives. The module needs only the standard library and pytest,
so that the same tests run in a bare root directory with another Slurm release. The cluster has one munged,
one slurmctld and one slurmd with four CPUs, without accounting. It uses one directory and its own ports.
Tests of the whole system with the real senergyd use the lab instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

TIMEOUT_S = 80.0
NODES = ("n1", "n2", "n3")
FIRST_GPU_FILE = 128
PROGRAMS = ("sbatch", "slurmctld", "slurmd", "munged")
PREFIX = os.environ.get("SENERGY_TEST_SLURM_PREFIX", "")
"""Prefix of a Slurm outside /usr: spank-release.sh --slurm-prefix."""
SEARCH = ":".join(
    [*([f"{PREFIX}/bin", f"{PREFIX}/sbin"] if PREFIX else []), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]
)
NODE_LINE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000"
SLURM_CONF = """\
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
MpiDefault=none
ReturnToService=2
KillWait=1
MinJobAge=86400
{hooks}
PrologFlags=Alloc
PlugStackConfig={dir}/plugstack.conf
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=5 State=UP OverSubscribe=NO
{extra}
"""
HOOK_LINES = "Prolog={dir}/prolog\nEpilog={dir}/epilog"
# The environment's file appears whole and once the hook is through: who waits for it waits for the hook.
HOOK_SCRIPT = """\
#!/bin/sh
exec 2>>{dir}/hook.log
file={dir}/env.{operation}.$SLURM_JOB_ID
/usr/bin/env >$file.part
{hook} {operation} --socket {dir}/agent.sock
code=$?
/usr/bin/mv $file.part $file
exit $code
"""


def marks(*more_programs: str) -> list[pytest.MarkDecorator]:
    """Return the pytest marks of a test module that needs a small Slurm cluster and some programs.

    The tests are skipped without root, or if a program is not installed.
    """
    path = f"{SEARCH}:{os.environ['PATH']}"
    missing = [name for name in (*PROGRAMS, *more_programs) if not shutil.which(name, path=path)]
    return [
        pytest.mark.cluster,
        pytest.mark.root,
        pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
        pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
    ]


class FakeAgent:
    """Stand-in for senergyd that stores every message and answers each with `ANSWER`."""

    ANSWER = b'{"ok": true, "policy": "monitor", "applied": 0, "failed": 0}\n'

    def __init__(self, path: Path) -> None:
        self.messages: list[dict[str, object]] = []
        self.uids: list[int] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(64)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def of(self, operation: str, job_id: int | None = None) -> list[dict[str, object]]:
        """Return the received messages of one operation, optionally only of one job."""
        found = [m for m in list(self.messages) if m["op"] == operation]
        return [m for m in found if job_id is None or self.job_of(m) == job_id]

    @property
    def listens(self) -> bool:
        return self.listener.fileno() >= 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)

    @staticmethod
    def job_of(message: dict[str, object]) -> int:
        """Return the job id of a message of any operation."""
        environment = message.get("env")
        return int(str(environment["SLURM_JOB_ID"] if isinstance(environment, dict) else message["job_id"]))

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            # Who has waited long enough is gone when it is answered, and has been heard all the same.
            with contextlib.suppress(OSError), connection, connection.makefile("rwb") as stream:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                for line in stream:
                    self.uids.append(int.from_bytes(credentials[4:8], "little"))
                    self.messages.append(json.loads(line))
                    stream.write(self.ANSWER)
                    stream.flush()


class SmallCluster:
    """Slurm cluster that starts on entry and ends on exit; commands run with its configuration.

    Args:
        directory: an empty directory that other users may enter, short enough for unix sockets.
        plugin: the built energy.so.
        hook: the built senergy-hook.
        extra: further lines of slurm.conf.
        gpus: type and number of GPUs by node, such as `a100:4`. Their device files are named gpu128 and so
            on, as those of AMD and Intel GPUs are named renderD128 and so on.
        hooks: lines of slurm.conf that make Slurm call the program `hook`. If they are empty, the caller
            must name the plugin energy_hooks.so with the method `write_plugstack` instead.
    """

    def __init__(
        self,
        directory: Path,
        plugin: Path,
        hook: Path,
        extra: str = "",
        gpus: Mapping[str, str] | None = None,
        hooks: str = HOOK_LINES,
    ) -> None:
        self.directory = directory
        self.hooks = hooks
        self.plugin = plugin
        self.hook = hook
        self.extra = extra
        self.gpus = gpus or {}
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.agent: FakeAgent | None = None
        self.reserved: list[socket.socket] = []

    @property
    def policy_file(self) -> Path:
        return self.directory / "policies"

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SALLOC"))}
        return kept | {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": SEARCH, "LC_ALL": "C"}

    def __enter__(self) -> SmallCluster:
        try:
            self._write_files()
            self.agent = FakeAgent(self.directory / "agent.sock")
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if len(self.daemons) > 2:
            self._settle()
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)
        self._kill_left_over_steps()
        if self.agent:
            self.agent.close()
        for probe in self.reserved:
            probe.close()

    def run(
        self, *command: str, user: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command as root or as `user`, for at most TIMEOUT_S."""
        prefix = ["setpriv", f"--reuid={user}", "--clear-groups", "--"] if user else []
        return subprocess.run(
            [*prefix, *command],
            env=self.environment | environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )

    def restart_controller(self) -> None:
        """Stop slurmctld and start it again with the state that it has saved."""
        place = next(i for i, daemon in enumerate(self.daemons) if "slurmctld" in str(daemon.args))
        self.daemons[place].terminate()
        self.daemons[place].wait(TIMEOUT_S)
        self._spawn("slurmctld", "-D", "-f", f"{self.directory}/slurm.conf")
        self.daemons[place] = self.daemons.pop()
        wait_until(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld", self)

    def script(self, *lines: str, name: str = "job.sh") -> str:
        """Write a batch script and return its path."""
        path = self.directory / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return str(path)

    def batch(self, *arguments: str, user: str | None = None) -> int:
        """Submit a batch job, wait until its epilog has run, and return the job id."""
        done = self.run("sbatch", "--parsable", "--output=/dev/null", *arguments, user=user)
        assert done.returncode == 0, done.stderr
        job_id = int(done.stdout.split(";")[0])
        self.hook_environment("end", job_id)
        return job_id

    def job_count(self) -> int:
        """Return the number of jobs that slurmctld knows, in any state."""
        listing = self.run("squeue", "--noheader", "--states=all", "--format=%i")
        assert listing.returncode == 0, listing.stderr
        return len(listing.stdout.split())

    def hook_environment(self, operation: str, job_id: int) -> dict[str, str]:
        """Return the environment of a job's prolog (`begin`) or epilog (`end`), once the hook has run.

        If the cluster has a stand-in for the agent, the method also waits until the hook's message has
        arrived. The agent has then received all earlier messages of the job, because it processes messages
        in order.
        """
        path = self.directory / f"env.{operation}.{job_id}"
        wait_until(path.exists, f"{operation} hook of job {job_id}")
        if self.agent and self.agent.listens:
            wait_until(lambda: bool(self.agent.of(operation, job_id)), f"{operation} of job {job_id}")
        pairs = (line.partition("=") for line in path.read_text().splitlines() if "=" in line)
        return {name: value for name, _, value in pairs}

    def write_plugstack(self, arguments: str | None = None) -> None:
        """Write plugstack.conf; commands, prolog and steps read it each time."""
        if arguments is None:
            arguments = f"policy_file={self.policy_file} socket={self.directory}/agent.sock"
        part = self.directory / "plugstack.part"
        part.write_text(f"optional {self.plugin} {arguments}\n")
        part.rename(self.directory / "plugstack.conf")  # a job of before may be reading it

    def _write_files(self) -> None:
        d = self.directory
        host = socket.gethostname()
        self.reserved = reserve_ports(1 + len(NODES))
        ports = [probe.getsockname()[1] for probe in self.reserved]
        d.chmod(0o755)
        (d / "state").mkdir()
        for name in NODES:
            (d / f"spool.{name}").mkdir()
        values = {
            "dir": d,
            "host": host,
            "controller_port": ports[0],
            "nodes": "\n".join(
                NODE_LINE.format(name=name, host=host, port=port) + self._gres(name)
                for name, port in zip(NODES, ports[1:], strict=True)
            ),
            "extra": self.extra.format(dir=d),
            "hooks": self.hooks.format(dir=d),
        }
        (d / "slurm.conf").write_text(SLURM_CONF.format(**values))
        (d / "gres.conf").write_text("\n".join(self._gres_line(name) for name in self.gpus) + "\n")
        (d / "cgroup.conf").write_text(f"{cgroup_line()}\n")
        self.write_plugstack()
        for name, operation in (("prolog", "begin"), ("epilog", "end")):
            path = d / name
            path.write_text(HOOK_SCRIPT.format(dir=d, hook=self.hook, operation=operation))
            path.chmod(0o755)
        for path in d.glob("*.conf"):  # whatever the umask: other users submit, too
            path.chmod(0o644)
        (d / "munge.key").write_bytes(os.urandom(64))
        (d / "munge.key").chmod(0o400)

    def _gres(self, node: str) -> str:
        return f" Gres=gpu:{self.gpus[node]}" if node in self.gpus else ""

    def _gres_line(self, node: str) -> str:
        kind, _, count = self.gpus[node].partition(":")
        for number in range(FIRST_GPU_FILE, FIRST_GPU_FILE + int(count)):
            if not (path := self.directory / f"gpu{number}").exists():
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        files = f"{self.directory}/gpu[{FIRST_GPU_FILE}-{FIRST_GPU_FILE + int(count) - 1}]"
        return f"NodeName={node} Name=gpu Type={kind} File={files}"

    def _start(self) -> None:
        d = self.directory
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        self._spawn("munged", "--foreground", "--force", *(f"--{k}={d}/{v}" for k, v in files.items()))
        wait_until(lambda: _accepts(d / "munge.socket"), "munged", self)
        self._spawn("slurmctld", "-D", "-c", "-f", f"{d}/slurm.conf")
        wait_until(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld", self)
        for name in NODES:
            self._spawn("slurmd", "-D", "-N", name, "-f", f"{d}/slurm.conf")
        states = ("sinfo", "--noheader", "--Node", "--format=%T")
        wait_until(lambda: self.run(*states).stdout.split() == ["idle"] * len(NODES), "slurmd", self)

    def _spawn(self, program: str, *arguments: str) -> None:
        log = (self.directory / f"{program}.out").open("ab")
        path = shutil.which(program, path=SEARCH) or program
        with log:
            daemon = subprocess.Popen(
                [path, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.daemons.append(daemon)

    def _settle(self) -> None:
        """Wait up to 5 s for running jobs to end before the daemons of the cluster are stopped.

        slurmd stops slowly while it still has to report the end of an epilog to slurmctld.
        """
        busy = ("squeue", "--noheader", "--states=RUNNING,COMPLETING", "--format=%i")
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            wait_until(lambda: not self.run(*busy).stdout.strip(), "jobs", timeout_s=5)

    def _kill_left_over_steps(self) -> None:
        """Kill all slurmstepd processes of this cluster that are still running.

        They are recognised by the variable SLURM_CONF, which names the directory of this cluster.
        """
        mark = f"SLURM_CONF={self.directory}/".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

    def logs(self) -> str:
        """Return the last lines of all logs, for a failure message."""
        paths = sorted(self.directory.glob("*.out"))
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in paths)


def cgroup_line() -> str:
    """Return the line of cgroup.conf that prevents slurmd from using cgroups."""
    version = subprocess.run(
        [shutil.which("slurmctld", path=SEARCH) or "slurmctld", "-V"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    release = re.search(r" (\d+)\.(\d+)", version.stdout)
    assert release, version.stdout
    is_old = (int(release[1]), int(release[2])) < (24, 5)
    return "CgroupAutomount=no" if is_old else "CgroupPlugin=disabled"


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(str(path))
        return True
    return False


def reserve_ports(count: int) -> list[socket.socket]:
    """Return sockets that each reserve a TCP port.

    No other program gets these ports, except the daemons under test, which set SO_REUSEADDR.
    """
    held = [socket.socket() for _ in range(count)]
    for probe in held:
        probe.bind(("127.0.0.1", 0))
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def wait_until(
    condition: Callable[[], bool],
    what: str,
    cluster: SmallCluster | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Wait until `condition()` holds; fail with the logs after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not ready\n{cluster.logs() if cluster else ''}")
        time.sleep(0.05)
