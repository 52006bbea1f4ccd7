"""Operations of tests on a lab.

A test can submit and await jobs, run commands on the login node or in a node, and read the true energy and
power from the model.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import EnergyError
from slurm_energy_lab import client
from slurm_energy_lab.cluster import layout, lifecycle, nodes_file, processes
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec

UNFINISHED = "PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING,STAGE_OUT,SIGNALING,STOPPED,REQUEUED"
FORGOTTEN = "Invalid job id"
NO_INDEX_YET = "the DB index is being set, try again"
"""What squeue says of a job that was over long ago."""
POLL_S = 0.1
PARENT, PREFIX = Path("/var/tmp"), "senergy-test-"


@dataclass(frozen=True)
class LabRequest:
    """The lab (Slurm cluster of emulated nodes) that a test requests with the pytest marker `lab`.

    Tests with equal requests share one lab. `overrides` contains values by dotted key of the node
    profile; the values apply to every node. The other fields are as in `LabSpec`.
    """

    profiles: tuple[str, ...] = nodes_file.DEFAULT_PROFILES
    overrides: Mapping[str, Any] = field(default_factory=dict)
    slurm: tuple[str, ...] = ()
    energy: Mapping[str, Any] = field(default_factory=dict)
    accounting: bool = True
    product: bool = True
    users: Mapping[str, int] = field(default_factory=lambda: {"nobody": 1})
    priority: str = "off"
    slurm_energy: bool = False

    @classmethod
    def from_marker(cls, arguments: Mapping[str, Any]) -> LabRequest:
        lists = {key: tuple(value) for key, value in arguments.items() if isinstance(value, list | tuple)}
        return cls(**{**arguments, **lists})

    def spec(self) -> LabSpec:
        nodes = tuple(replace(n, overrides=self.overrides) for n in nodes_file.from_profiles(self.profiles))
        more = {"users": self.users, "priority": self.priority, "slurm_energy": self.slurm_energy}
        return LabSpec(nodes, self.slurm, self.energy, self.accounting, self.product, **more)


class LabDriver:
    """A lab (Slurm cluster of emulated nodes) in a new directory, for tests and benchmarks.

    The lab ends together with this process, even if the process is killed.
    """

    def __init__(self, wish: LabRequest) -> None:
        self.wish = wish
        self.layout = layout.locate_lab(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=PARENT))
        try:
            self.lab: Lab = lifecycle.up(self.layout, wish.spec())
        except BaseException:
            lifecycle.down(self.layout)
            raise

    @property
    def nodes(self) -> list[str]:
        """Names of the lab's nodes: n1, n2, ...

        The names have the order of the lab's hardware profiles.
        """
        return self.lab.nodes

    @property
    def env(self) -> dict[str, str]:
        """All environment variables of a shell on the login node of the lab (emulated cluster)."""
        return {**os.environ, **self.lab.environment()}

    def run(
        self, *argv: str, check: bool = True, timeout: float = 60, user: str | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node, as root or as `user`, and return its output as text."""
        done = subprocess.run(
            argv,
            env={**self.env, **more.pop("env", {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            user=user,
            cwd=more.pop("cwd", self.layout.root),
            check=False,
            **more,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def exec(self, node: str, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command inside a node as root; options as in `run`."""
        return self.run(*self.lab.exec_argv(node, list(argv), options.get("cwd")), **options)

    def sbatch(self, job: str | Path, *options: str, **more: Any) -> int:
        """Submit a script (a path, or text with #!) or a command line; return the job id.

        Output goes to /dev/null unless the options say where.
        """
        if isinstance(job, str) and not job.startswith("#!"):
            what, script = ["--wrap", job], None
        else:
            what, script = [], job if isinstance(job, str) else job.read_text()
        silent = [] if any(o.startswith(("-o", "--output")) for o in options) else ["--output=/dev/null"]
        argv = ["sbatch", "--parsable", *silent, *options, *what]
        return int(self.run(*argv, input=script, **more).stdout.split(";")[0])

    def update(self, *argv: str, user: str | None = None) -> None:
        """Change jobs with scontrol, as root or as `user`, e.g. `update("release", "12,13")`.

        slurmctld refuses a change until slurmdbd has given the job an index, for example after slurmctld has
        restarted. The command is then repeated, as Slurm's message demands.
        """
        deadline = time.monotonic() + 60
        while True:
            done = self.run("scontrol", *argv, check=False, user=user)
            if NO_INDEX_YET not in done.stderr:
                break
            assert time.monotonic() < deadline, done.stderr
            time.sleep(POLL_S)
        assert done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"

    def wait(self, job_id: int, timeout: float = 120) -> str:
        """Wait until a job with all its array tasks and components has ended, including epilogs.

        Returns:
            The state of the job according to scontrol, e.g. `COMPLETED`. For an array, the state of
            the task that scontrol shows last.
        """
        deadline = time.monotonic() + timeout
        while self._queued("-j", str(job_id), "-t", UNFINISHED) != []:
            assert time.monotonic() < deadline, self.run("scontrol", "show", "job", str(job_id)).stdout
            time.sleep(POLL_S)
        return self.job(job_id)["JobState"]

    def _queued(self, *options: str) -> list[str] | None:
        """Return the ids of the jobs that squeue shows.

        None is returned if slurmctld did not answer. In this case, nothing is known about the jobs.
        """
        done = self.run("squeue", "-h", "-o", "%A", *options, check=False)
        return done.stdout.split() if done.returncode == 0 or FORGOTTEN in done.stderr else None

    def job(self, job_id: int) -> dict[str, str]:
        """Return the output of `scontrol show job`."""
        text = self.run("scontrol", "-o", "show", "job", str(job_id)).stdout.splitlines()[-1]
        return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)

    def truth(self, node: str) -> dict[str, Any]:
        """Return the model's exact `energy_joules` and `power_watts` by component, and `time`."""
        return client.truth(self.layout.emulator_socket(node))

    def pid(self, daemon: str, node: str | None = None) -> int:
        """Return a daemon's PID, e.g. `pid("senergyd", "n1")`; it must be running."""
        pid = self.lab.daemon_pid(daemon, node)
        assert pid is not None, f"{node or 'lab'}: {daemon} does not run"
        return pid

    def kill(self, daemon: str, node: str | None = None, how: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon; after SIGKILL or SIGTERM wait until it has ended."""
        os.kill(self.pid(daemon, node), how)
        deadline = time.monotonic() + 60
        while how in (signal.SIGKILL, signal.SIGTERM) and self.lab.daemon_pid(daemon, node) is not None:
            assert time.monotonic() < deadline, f"{daemon} does not end"
            time.sleep(0.02)

    def start(self, daemon: str, node: str | None = None) -> None:
        """Start an ended daemon again."""
        self.lab.start_daemon(daemon, node)

    def log(self, name: str) -> str:
        """Return a daemon's log, e.g. `slurmctld` or `n1-senergyd`."""
        return (self.layout.log / f"{name}.log").read_text(errors="replace")

    def calm(self) -> None:
        """End all jobs before the next test."""
        deadline = time.monotonic() + 120
        while (jobs := self._queued()) != []:
            assert time.monotonic() < deadline, f"jobs {jobs} do not end"
            self.run("scancel", *(jobs or []), check=False)
            time.sleep(POLL_S)

    def down(self) -> None:
        """Remove the lab."""
        lifecycle.down(self.layout)


def sweep() -> None:
    """Remove the labs (clusters of emulated nodes) that killed test sessions have left behind.

    The name of a lab's directory begins with the process id of its test session. No other file identifies
    this process: lab.json names the process that called `up`, which is for some tests a command that has
    long ended.
    """
    for root in PARENT.glob(f"{PREFIX}*"):
        owner = root.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not processes.is_running(int(owner)):
            with contextlib.suppress(EnergyError):  # another worker removes it, or it is no longer a lab
                lifecycle.down(layout.locate_lab(root))


def traces_of(root: Path) -> Sequence[str]:
    """Return what a removed lab has left on this machine, as lines of text.

    These can be processes, mounts, control groups and files.
    """
    needle = str(root).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if needle in text and state != b"Z":
            found.append(f"process {entry.name}: {text[:80]!r}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(root) in line]
    group = layout.locate_lab(root).cgroup
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))  # others' may go away meanwhile
    found += [f"control group {folder}" for folder in folders if folder.endswith(f"/{group}")]
    if root.exists():
        found.append(f"files {[str(path) for path in root.iterdir()]}")
    return found
