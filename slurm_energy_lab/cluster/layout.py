"""Paths of a lab, all in one directory. The module does not access the file system."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import UsageError

ENVIRONMENT_KEY = "SENERGY_LAB_DIR"
DEFAULT_ROOT = Path("/var/tmp/senergy-lab")
NODE_EMULATOR_SOCKET = Path("/run/senergy-lab/emulator.sock")
"""The emulator's control socket as seen inside a node."""
_SOCKET_PATH_LIMIT = 107
_SHADOWED = ("/run", "/var/run", "/dev", "/sys", "/proc")


@dataclass(frozen=True, slots=True)
class LabLayout:
    """Paths below one lab's directory."""

    root: Path

    @property
    def etc(self) -> Path:
        """Configuration of every daemon."""
        return self.root / "etc"

    @property
    def log(self) -> Path:
        """One file per daemon."""
        return self.root / "log"

    @property
    def state(self) -> Path:
        """State of the lab's own daemons."""
        return self.root / "state"

    @property
    def lib(self) -> Path:
        """Compiled C parts of the lab, among them libnvidia-ml.so.1."""
        return self.root / "lib"

    @property
    def record(self) -> Path:
        """lab.json: specification and state of this lab. Its presence marks the directory as a lab's."""
        return self.root / "lab.json"

    @property
    def slurm_conf(self) -> Path:
        """slurm.conf of users and tools."""
        return self.root / "etc" / "slurm.conf"

    @property
    def daemon_conf(self) -> Path:
        """slurm.conf of the daemons: includes the other one, and listens on the loopback interface only."""
        return self.root / "etc" / "daemon" / "slurm.conf"

    @property
    def energy_toml(self) -> Path:
        """Configuration of slurm-energy."""
        return self.root / "etc" / "energy.toml"

    @property
    def hosts(self) -> Path:
        """The file shown as /etc/hosts to the lab's daemons and nodes."""
        return self.root / "etc" / "hosts"

    @property
    def linker_cache(self) -> Path:
        """The file shown as /etc/ld.so.cache to nodes with GPUs."""
        return self.root / "etc" / "ld.so.cache"

    @property
    def munge_socket(self) -> Path:
        """Socket of the lab's own munged."""
        return self.root / "run" / "munge" / "munge.socket.2"

    @property
    def database_socket(self) -> Path:
        """Socket of the lab's own MariaDB."""
        return self.root / "run" / "mysql" / "mysql.sock"

    @property
    def policies(self) -> Path:
        """The policy file that senergyctld writes."""
        return self.root / "run" / "policies"

    @property
    def priority_table(self) -> Path:
        """Table with the order of the queue, read by slurmctld's plugin."""
        return self.root / "run" / "senergyctld" / "priority.table"

    @property
    def queue_table(self) -> Path:
        """Table with the jobs in the queue, written by slurmctld's plugin."""
        return self.root / "run" / "queue" / "queue.table"

    @property
    def slurm_plugins(self) -> Path:
        """Directory of Slurm plugins, readable for all users."""
        return self.root / "lib" / "slurm"

    @property
    def agent_state(self) -> Path:
        """Mount point inside each node of that node's own state directory."""
        return self.root / "state" / "agent"

    @property
    def cgroup(self) -> str:
        """Name of the parent control group of all groups of this lab."""
        return f"senergy-lab-{zlib.crc32(str(self.root).encode()):08x}"

    def supervisor_socket(self, node: str | None) -> Path:
        """Return the socket of the supervisor of a node, or with None of the lab's daemons."""
        return self.node_run(node) / "supervisor.sock" if node else self.root / "run" / "supervisor.sock"

    def node(self, name: str) -> Path:
        """Return a node's own directory."""
        return self.root / "nodes" / name

    def node_run(self, name: str) -> Path:
        """Return the directory of senergy and senergy-lab of the node's /run, and the supervisor's socket."""
        return self.node(name) / "run"

    @property
    def stage(self) -> Path:
        """Empty directory in which the lab's supervisor assembles directories to mount."""
        return self.root / "run" / "stage"

    def view(self, node: str | None) -> Path:
        """Return the file with the mounts of a node, or with None of the lab's daemons."""
        return self.node(node) / "view.json" if node else self.root / "run" / "view.json"

    def tree(self, name: str) -> Path:
        """Return the mount point of the node's emulated files (visible only to the lab's processes)."""
        return self.node(name) / "fuse"

    def emulator_socket(self, name: str) -> Path:
        """Return the emulator's control socket as seen outside the node."""
        return self.node_run(name) / "senergy-lab" / "emulator.sock"


def locate_lab(argument: Path | str | None = None) -> LabLayout:
    """Return the layout of the lab in `argument`, else in $SENERGY_LAB_DIR, else in the default directory.

    Raises:
        UsageError: the path is too long for sockets, hidden inside nodes, or has a character with a meaning
            in slurm.conf.
    """
    root = Path(os.path.abspath(argument or os.environ.get(ENVIRONMENT_KEY) or DEFAULT_ROOT))  # noqa: PTH100
    layout = LabLayout(root)
    if any(root.is_relative_to(path) for path in _SHADOWED) or root == Path("/"):
        raise UsageError(f"lab directory {root}", "nodes have their own /run, /dev, /sys and /proc")
    longest = layout.emulator_socket("n" * 16)
    if len(str(longest)) > _SOCKET_PATH_LIMIT:
        spare = _SOCKET_PATH_LIMIT - len(str(longest)) + len(str(root))
        raise UsageError(
            f"lab directory {root}", f"longer than {spare} characters, too long for Unix sockets"
        )
    if set(str(root)) & set(" \t\n\"'\\%#$,[]"):
        raise UsageError(f"lab directory {root}", "contains a character with a meaning in slurm.conf")
    return layout
