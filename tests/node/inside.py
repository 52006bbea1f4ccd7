"""Run a command so that it sees an emulated node instead of this machine.

Usage: inside.py TREE STAGE UID COMMAND...

TREE is the file tree of the emulated node, STAGE is a directory for its root file system, and UID is the
user id under which the command runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from slurm_energy_lab.cluster import namespaces


def main() -> int:
    tree, stage, uid, *command = sys.argv[1:]
    namespaces.unshare()
    child = os.fork()
    if child == 0:
        namespaces.enter_node(Path(tree), {Path("/run/senergy-lab"): Path(stage).parent}, Path(stage))
        if int(uid):
            os.setgroups([])
            os.setgid(int(uid))
            os.setuid(int(uid))
        os.execvp(command[0], command)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


sys.exit(main())
