"""Lab node for tests that runs no processes.

The emulated file tree of the node shows a model of the node. The test sets the clock of the model.
"""

from __future__ import annotations

from typing import Any

from slurm_energy_lab.model import load_profile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import CharacterDevice, File
from slurm_energy_lab.tree.node_tree import NodeOptions, NodeTree, build_tree

CPUFREQ = "/sys/devices/system/cpu/cpufreq"
INTEL = "/sys/devices/system/cpu/intel_pstate"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """Emulated node for tests of its files and devices.

    The tests read and write the files as root would, but without mounting them with FUSE.
    """

    def __init__(self, profile: str, firmware: NodeOptions | None = None, **overrides: Any) -> None:
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        self.clock = Clock()
        self.realtime_model = RealtimeModel(load_profile(profile, dotted), self.clock)
        self.node: NodeTree = build_tree(self.realtime_model, firmware or NodeOptions("n1"))

    def entry(self, path: str) -> File:
        found = self.node.tree.get(path)
        assert isinstance(found, File), path
        return found

    def device(self, path: str) -> CharacterDevice:
        found = self.node.tree.get(path)
        assert isinstance(found, CharacterDevice), path
        return found

    def read(self, path: str) -> str:
        return self.entry(path).render().decode().removesuffix("\n")

    def write(self, path: str, text: str | bytes) -> None:
        store = self.entry(path).store
        assert store is not None, path
        store(text if isinstance(text, bytes) else text.encode())

    def policy(self, name: str, cpu: int = 0) -> str:
        return f"{CPUFREQ}/policy{cpu}/{name}"

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
