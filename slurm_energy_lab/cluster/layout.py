"""Paths of a lab. All paths are in one directory.

The module does not access the file system.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import UsageError
from slurm_energy.trusted_files import check_folder

ENVIRONMENT_KEY = "SENERGY_LAB_DIR"
DEFAULT_ROOT = Path("/var/tmp/senergy-lab")
NODE_EMULATOR_SOCKET = Path("/run/senergy-lab/emulator.sock")
"""The emulator's control socket as seen inside a node."""
_SOCKET_PATH_LIMIT = 107
_SHADOWED = ("/run", "/var/run", "/dev", "/sys", "/proc")


@dataclass(frozen=True, slots=True)
class LabLayout:
    """Paths in a lab's directory."""

    root: Path

    @property
    def etc(self) -> Path:
        """Directory with the configuration of every daemon."""
        return self.root / "etc"

    @property
    def log(self) -> Path:
        """Directory with one log file per daemon."""
        return self.root / "log"

    @property
    def state(self) -> Path:
        """Directory with the state of the daemons that the lab (cluster of emulated nodes) runs itself."""
        return self.root / "state"

    @property
    def lib(self) -> Path:
        """Directory with the compiled C parts of the lab, among them libnvidia-ml.so.1."""
        return self.root / "lib"

    @property
    def record(self) -> Path:
        """The file lab.json with specification and state of this lab (cluster of emulated nodes).

        The presence of this file marks the directory of a lab.
        """
        return self.root / "lab.json"

    @property
    def slurm_conf(self) -> Path:
        """The slurm.conf for users and tools."""
        return self.root / "etc" / "slurm.conf"

    @property
    def daemon_conf(self) -> Path:
        """The slurm.conf for the daemons.

        This file includes the slurm.conf for users. It makes the daemons listen only on the loopback
        interface.
        """
        return self.root / "etc" / "daemon" / "slurm.conf"

    @property
    def energy_toml(self) -> Path:
        """Path of the configuration file of slurm-energy in a lab (cluster of emulated nodes)."""
        return self.root / "etc" / "energy.toml"

    @property
    def hosts(self) -> Path:
        """The file that the lab's daemons and nodes see as /etc/hosts."""
        return self.root / "etc" / "hosts"

    @property
    def linker_cache(self) -> Path:
        """The file that nodes with GPUs see as /etc/ld.so.cache."""
        return self.root / "etc" / "ld.so.cache"

    @property
    def munge_socket(self) -> Path:
        """Socket of the munged that runs only for this lab (cluster of emulated nodes)."""
        return self.root / "run" / "munge" / "munge.socket.2"

    @property
    def database_socket(self) -> Path:
        """Socket of the MariaDB server that belongs to the lab (cluster of emulated nodes)."""
        return self.root / "run" / "mysql" / "mysql.sock"

    @property
    def policies(self) -> Path:
        """File to which senergyctld writes the energy policies."""
        return self.root / "run" / "policies"

    @property
    def priority_table(self) -> Path:
        """File from which slurmctld's priority plugin reads the order of the queue."""
        return self.root / "run" / "senergyctld" / "priority.table"

    @property
    def queue_table(self) -> Path:
        """File to which slurmctld's priority plugin writes the jobs in the queue."""
        return self.root / "run" / "queue" / "queue.table"

    @property
    def slurm_plugins(self) -> Path:
        """Directory of the lab's Slurm plugins. All users can read this directory."""
        return self.root / "lib" / "slurm"

    @property
    def agent_state(self) -> Path:
        """Path inside each node at which the state directory of the node's agent is mounted."""
        return self.root / "state" / "agent"

    @property
    def cgroup(self) -> str:
        """Name of the Linux cgroup above all cgroups of this lab (cluster of emulated nodes)."""
        return f"senergy-lab-{zlib.crc32(str(self.root).encode()):08x}"

    def supervisor_socket(self, node: str | None) -> Path:
        """Return the socket of a node's supervisor.

        If `node` is None, return the socket of the supervisor of the lab's daemons.
        """
        return self.node_run(node) / "supervisor.sock" if node else self.root / "run" / "supervisor.sock"

    def node(self, name: str) -> Path:
        """Return the directory of a node."""
        return self.root / "nodes" / name

    def node_run(self, name: str) -> Path:
        """Return the directory on the host with the runtime files of an emulated node.

        It contains the directories `senergy` and `senergy-lab`. Inside the node, these two directories are
        visible in /run. The directory also contains the socket of the node's supervisor.
        """
        return self.node(name) / "run"

    @property
    def stage(self) -> Path:
        """Empty directory in which the lab's supervisor of daemons assembles directories to mount."""
        return self.root / "run" / "stage"

    def view(self, node: str | None) -> Path:
        """Return the file that lists the mounts of a node of the lab (cluster of emulated nodes).

        If `node` is None, return the file that lists the mounts of the lab's daemons.
        """
        return self.node(node) / "view.json" if node else self.root / "run" / "view.json"

    def tree(self, name: str) -> Path:
        """Return the mount point of a node's emulated files.

        Only the processes of the lab (the cluster of emulated nodes) see this mount.
        """
        return self.node(name) / "fuse"

    def network_socket(self, name: str) -> Path:
        """Return the path of the socket that gives Slurm tasks access to the node's network namespace.

        The path is valid outside the node's own namespace.
        """
        return self.node_run(name) / "senergy-lab" / "network.sock"

    def emulator_socket(self, name: str) -> Path:
        """Return the path of an emulator's control socket, as seen from outside the node."""
        return self.node_run(name) / "senergy-lab" / "emulator.sock"


def locate_lab(argument: Path | str | None = None) -> LabLayout:
    """Return the paths of the lab in the directory `argument`.

    If `argument` is None, use the directory $SENERGY_LAB_DIR, or the default directory if this variable is
    not set.

    Raises:
        UsageError: the path is too long for sockets, is not visible inside nodes, or contains a character
            that is special in slurm.conf.
        ConfigError: other users could replace files in the directory. A directory of this kind is refused,
            because root executes programs from it.
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
    if root.exists():
        check_folder(root)
    return layout
