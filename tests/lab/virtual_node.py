"""An emulated node and the agent's job manager on one virtual clock, in one process and without root.

The emulator's files are copied into a folder. Before each sample the contents that change with time are
written again. After each request to the job manager the settings that it wrote are passed to the emulator.
Energy is therefore measured as on a real node, while seconds pass as fast as the model computes them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab_bench import Bench

from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import AgentConfig, Config
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import EnergyCounter, Knob, WriteStage
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.devices.source_priority import SourceSelection
from slurm_energy.records import EnergyRecord
from slurm_energy_lab.model import KernelRequest, KernelResult, NodeModel
from slurm_energy_lab.tree.entries import Directory, File, Link

_DYNAMIC = ("/energy_uj", "/stat", "/cpu.stat")
_LOWER_CACHE = re.compile(r"/cache/index[012](/|$)")


class VirtualClock(Clock):
    """The agent's clock; shows the time of the emulator's clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s

    def boottime(self) -> float:
        return self._now_s()

    def suspended(self) -> float:
        return 0.0

    def unix(self) -> float:
        return 1_700_000_000 + self._now_s()


class ModelGpuCounter(EnergyCounter):
    """Energy counter of one GPU: whole millijoules, as NVML shows them."""

    range_uj = None
    max_watts = 1e4
    source = "nvml:total_energy"

    def __init__(self, bench: Bench, index: int) -> None:
        self.key = f"nvml:total_energy[{index}]"
        self.component = f"gpu[{index}]"
        self._bench, self._index = bench, index

    def read(self) -> int:
        with self._bench.realtime_model.now() as model:
            return model.gpu_state(self._index).energy_mj * 1000


class ModelGpuLimit(Knob):
    """Power limit of one GPU in milliwatts."""

    name = "nvml.power_limit"
    stage = WriteStage.GPU_LIMIT

    def __init__(self, bench: Bench, index: int) -> None:
        super().__init__(f"gpu{index}")
        self._bench, self._index = bench, index

    def read(self) -> str:
        with self._bench.realtime_model.now() as model:
            return str(round(model.gpu_state(self._index).limit_watts * 1000))

    def write(self, value: str) -> None:
        with self._bench.realtime_model.modify() as model:
            model.set_gpu(self._index, int(value) / 1000)


class VirtualNode:
    """A node with an agent.

    Args:
        folder: for the copied files and the agent's state.
        profile: name of the emulated node's profile.
        sampling_hz: samples per second.
        agent: other settings of the agent.
        overrides: changes of the profile, `__` for each dot of a key.
    """

    def __init__(
        self,
        folder: Path,
        profile: str,
        sampling_hz: float = 10.0,
        agent: dict[str, Any] | None = None,
        **overrides: Any,
    ) -> None:
        self.bench = Bench(profile, **overrides)
        self.root = folder / "node"
        self._interval_s = 1.0 / sampling_hz
        self._last_job = 0
        self._jobs_with_flags: set[int] = set()
        self._settings: dict[str, bytes] = {}
        self._dynamic: dict[Path, File] = {}
        self._entry_count = 0
        self._copy()
        config = Config(agent=AgentConfig(sampling_hz=sampling_hz, **(agent or {})))
        devices = discover(self.root)
        gpus = tuple(self._gpu(index) for index in range(self.bench.realtime_model.profile.gpu_count))
        limits = [ModelGpuLimit(self.bench, gpu.index) for gpu in gpus]
        # The driver of the node's power meter reads it in a thread of its own, in real time.
        devices = dataclasses.replace(
            devices,
            node_counters=(),
            selection=SourceSelection(),
            hardware=dataclasses.replace(devices.hardware, gpus=gpus),
            counters=(*devices.counters, *(ModelGpuCounter(self.bench, gpu.index) for gpu in gpus)),
            knobs={**devices.knobs, **{limit.key: limit for limit in limits}},
        )
        self.state = StateDirectory(folder / "state")
        self.manager = JobManager(config, devices, self.state, VirtualClock(self.bench.clock))
        self.manager.start()

    def close(self) -> None:
        """Stop the agent."""
        self.manager.stop()
        self.bench.realtime_model.close()

    def new_job_id(self) -> int:
        """Return a job id that no job of this node has had."""
        self._last_job += 1
        return self._last_job

    def begin(self, job_id: int, cpus: int | None = None, **flags: str) -> None:
        """Begin a job; `cpus` is its allocation, all of them by default."""
        self._refresh()
        env = self.env(job_id, cpus)
        env |= {f"SPANK_ENERGY_{name.upper()}": value for name, value in flags.items()}
        self.manager.begin(env)
        if flags:
            self._jobs_with_flags.add(job_id)
            self._apply_settings()

    def end(self, job_id: int, cpus: int | None = None) -> None:
        """End a job."""
        self._refresh()
        self.manager.end(self.env(job_id, cpus))
        if job_id in self._jobs_with_flags:
            self._apply_settings()

    def env(self, job_id: int, cpus: int | None) -> dict[str, str]:
        """Return the environment that Slurm gives the prolog of a job."""
        profile = self.bench.realtime_model.profile
        return {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": "1001",
            "SLURM_NODELIST": "n1",
            "SLURMD_NODENAME": "n1",
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_JOB_GPUS": ",".join(map(str, range(profile.gpu_count))) if cpus is None else "",
            "SLURM_JOB_EXCLUSIVE": "node" if cpus is None else "no",
            "SLURM_JOB_CPUS_PER_NODE": str(profile.cpu.cpus if cpus is None else cpus),
        }

    @property
    def settings(self) -> dict[str, bytes]:
        """Contents of all files that take settings, by path."""
        return dict(self._settings)

    def submit(self, kernel: str, device: str, seconds: float, job_id: int, **where: Any) -> int:
        """Start a kernel that takes `seconds` at full speed; return its run id."""
        request = KernelRequest(kernel, device, full_speed_s=seconds, job_id=job_id, **where)
        with self.bench.realtime_model.modify() as model:
            run_id = model.submit(request, model.now_s)
        self.bench.node.groups.create_group(job_id)
        return run_id

    def run(self, kernel: str, device: str, seconds: float, job_id: int, **where: Any) -> KernelResult:
        """Run a kernel to its end."""
        run_id = self.submit(kernel, device, seconds, job_id, **where)
        while (result := self._model().result(run_id)) is None:
            self.wait(self._interval_s)
        return result

    def finished(self, run_id: int) -> bool:
        """Return whether a kernel has ended."""
        return self._model().result(run_id) is not None

    def wait(self, seconds: float) -> None:
        """Let time pass; the agent takes its regular samples."""
        end_s = self.bench.clock.now_s + seconds
        while (now_s := self.bench.clock.now_s) < end_s:
            self.bench.clock.now_s = min(now_s + self._interval_s, end_s)
            self._refresh()
            self.manager.sample()

    def energy_joules(self) -> dict[str, float]:
        """Return the model's exact energy of each component up to now."""
        model = self._model()
        return {name: model.energy_joules(name) for name in model.components()}

    def dynamic_joules(self, job_id: int) -> dict[str, float]:
        """Return the energy above idle that a job caused up to now, by component."""
        model = self._model()
        return model.usage().dynamic_joules(job_id, model.now_s)

    def records(self) -> dict[int, EnergyRecord]:
        """Return the records of ended jobs by job id, without steps."""
        self.manager.finalize_jobs()
        items = self.manager.spool.items(10**9, 10_000)
        records = [EnergyRecord.from_json(item.record) for item in items]
        return {record.job_id: record for record in records if record.step is None}

    def _model(self) -> NodeModel:
        with self.bench.realtime_model.now() as model:
            return model

    def _gpu(self, index: int) -> GpuInfo:
        gpu = self.bench.realtime_model.profile.gpu
        assert gpu is not None
        limits = gpu.default_limit_watts, gpu.min_limit_watts, gpu.max_limit_watts
        return GpuInfo(index, index, gpu.name, *limits, None)

    def _copy(self) -> None:
        tree = self.bench.node.tree
        for path, entry in list(tree._entries.items()):
            if _LOWER_CACHE.search(path):  # most files of the tree; the agent reads the last level only
                continue
            target = self.root / path.lstrip("/")
            if isinstance(entry, Directory):
                target.mkdir(parents=True, exist_ok=True)
            elif isinstance(entry, Link):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(entry.target)
            elif isinstance(entry, File):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content := _rendered(entry))
                if entry.store is not None:
                    self._settings[path] = content

    def _refresh(self) -> None:
        """Write contents that change with time, and files of new control groups."""
        entries = self.bench.node.tree._entries
        if len(entries) != self._entry_count:
            self._entry_count = len(entries)
            self._dynamic = {
                self.root / path.lstrip("/"): entry
                for path, entry in entries.items()
                if isinstance(entry, File) and path.endswith(_DYNAMIC)
            }
            for path in self._dynamic:
                path.parent.mkdir(parents=True, exist_ok=True)
        for path, entry in self._dynamic.items():
            path.write_bytes(_rendered(entry))

    def _apply_settings(self) -> None:
        """Pass written settings to the emulator, and write the resulting values back."""
        changed = False
        for path, before in list(self._settings.items()):
            written = (self.root / path.lstrip("/")).read_bytes()
            if written != before:
                store = self.bench.entry(path).store
                assert store is not None
                store(written)
                changed = True
        for path in self._settings if changed else ():
            self._settings[path] = content = _rendered(self.bench.entry(path))
            (self.root / path.lstrip("/")).write_bytes(content)


def _rendered(entry: File) -> bytes:
    try:
        return entry.render()
    except OSError:  # some attributes refuse a read in some modes; the agent then sees no value
        return b""
