"""Where everything of a lab lies: one directory, nothing outside it. Paths only, no effects."""

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
        """What the lab's own daemons keep."""
        return self.root / "state"

    @property
    def lib(self) -> Path:
        """Compiled C parts of the lab, among them libnvidia-ml.so.1."""
        return self.root / "lib"

    @property
    def record(self) -> Path:
        """lab.json: what this lab is; its presence marks the directory as a lab's."""
        return self.root / "lab.json"

    @property
    def slurm_conf(self) -> Path:
        """slurm.conf of users and tools."""
        return self.root / "etc" / "slurm.conf"

    @property
    def daemon_conf(self) -> Path:
        """slurm.conf of the daemons: the same, listening on the loopback interface only."""
        return self.root / "etc" / "daemon" / "slurm.conf"

    @property
    def energy_toml(self) -> Path:
        """The product's configuration."""
        return self.root / "etc" / "energy.toml"

    @property
    def hosts(self) -> Path:
        """What the lab's daemons and nodes see as /etc/hosts."""
        return self.root / "etc" / "hosts"

    @property
    def linker_cache(self) -> Path:
        """What GPU nodes see as /etc/ld.so.cache."""
        return self.root / "etc" / "ld.so.cache"

    @property
    def munge_socket(self) -> Path:
        """The lab's own munged."""
        return self.root / "run" / "munge" / "munge.socket.2"

    @property
    def database_socket(self) -> Path:
        """The lab's own MariaDB."""
        return self.root / "run" / "mysql" / "mysql.sock"

    @property
    def policies(self) -> Path:
        """The policy file that senergyctld writes."""
        return self.root / "run" / "policies"

    @property
    def priority_table(self) -> Path:
        """The order of the queue, for slurmctld's plugin."""
        return self.root / "run" / "senergyctld" / "priority.table"

    @property
    def queue_table(self) -> Path:
        """The queue as slurmctld's plugin sees it."""
        return self.root / "run" / "queue" / "queue.table"

    @property
    def slurm_plugins(self) -> Path:
        """Plugins for Slurm, readable for everybody."""
        return self.root / "lib" / "slurm"

    @property
    def agent_state(self) -> Path:
        """Mount point inside each node of that node's own state directory."""
        return self.root / "state" / "agent"

    @property
    def cgroup(self) -> str:
        """Name of the control group below which all of this lab's groups are."""
        return f"senergy-lab-{zlib.crc32(str(self.root).encode()):08x}"

    def supervisor_socket(self, node: str | None) -> Path:
        """Socket of PID 1 of a node, or of the lab itself."""
        return self.node_run(node) / "supervisor.sock" if node else self.root / "run" / "supervisor.sock"

    def node(self, name: str) -> Path:
        """Return a node's own directory."""
        return self.root / "nodes" / name

    def node_run(self, name: str) -> Path:
        """Return what becomes part of the node's /run: senergy, senergy-lab; and its supervisor's socket."""
        return self.node(name) / "run"

    @property
    def stage(self) -> Path:
        """Empty directory in which the lab's supervisor assembles others."""
        return self.root / "run" / "stage"

    def view(self, node: str | None) -> Path:
        """Return the description, for its supervisor, of what a node (None: the lab's daemons) sees."""
        return self.node(node) / "view.json" if node else self.root / "run" / "view.json"

    def tree(self, name: str) -> Path:
        """Return the mount point of the node's emulated files (visible only to the lab's processes)."""
        return self.node(name) / "fuse"

    def emulator_socket(self, name: str) -> Path:
        """Return the emulator's control socket as seen outside the node."""
        return self.node_run(name) / "senergy-lab" / "emulator.sock"


def locate_lab(argument: Path | str | None = None) -> LabLayout:
    """Return the layout of the lab in `argument`, else in $SENERGY_LAB_DIR, else in the default place.

    Raises:
        UsageError: the path is relative to nothing sensible, too long for sockets, or hidden inside nodes.
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
        raise UsageError(f"lab directory {root}", "a character in it means something in slurm.conf")
    return layout
