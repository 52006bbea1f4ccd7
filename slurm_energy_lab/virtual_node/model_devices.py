"""Energy counters and knobs (settings) of emulated GPUs.

They access the node model in memory instead of the GPU vendor's library.
"""

from __future__ import annotations

from slurm_energy.devices.driver import EnergyCounter, Knob, WriteStage
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.devices.settings import parse_range
from slurm_energy_lab.realtime_model import RealtimeModel


class ModelEnergyCounter(EnergyCounter):
    """Energy counter of a GPU or of the whole node, with a resolution of one millijoule."""

    range_uj = None
    max_watts = 1e5

    def __init__(self, model: RealtimeModel, component: str, source: str) -> None:
        self.key = f"{source}[{component}]"
        self.component, self.source = component, source
        self._model = model

    def read(self) -> int:
        """Return the energy in microjoules since the start of the model."""
        with self._model.now() as model:
            return int(model.energy_joules(self.component) * 1000) * 1000


class _GpuKnob(Knob):
    def __init__(self, model: RealtimeModel, index: int) -> None:
        super().__init__(f"gpu{index}")
        self._model, self._index = model, index


class ModelGpuPersistence(_GpuKnob):
    """Persistence mode of a simulated GPU. The mode is always on and cannot be changed."""

    name = "nvml.persistence"
    stage = WriteStage.PERSISTENCE

    def read(self) -> str:
        """Return `1`: the persistence mode of the emulated GPU is always on."""
        return "1"

    def write(self, value: str) -> None:
        """Accept any persistence mode, without effect."""


class ModelGpuLimit(_GpuKnob):
    """Power limit of one GPU in milliwatts."""

    name = "nvml.power_limit"
    stage = WriteStage.GPU_LIMIT

    def read(self) -> str:
        """Return the power limit in milliwatts."""
        with self._model.now() as model:
            return str(round(model.gpu_state(self._index).limit_watts * 1000))

    def write(self, value: str) -> None:
        """Set the power limit of the emulated GPU. `value` is in milliwatts."""
        with self._model.modify() as model:
            model.set_gpu(self._index, int(value) / 1000, model.gpu_clocks(self._index))


class ModelGpuClocks(_GpuKnob):
    """Range to which the graphics clock of one GPU is locked: `LOW-HIGH` in MHz, or `default`."""

    name = "nvml.locked_clocks"
    stage = WriteStage.GPU_CLOCK
    readable = False

    def read(self) -> str:
        """Return `default` whatever range is locked, because NVML cannot report the locked range."""
        return "default"

    def write(self, value: str) -> None:
        """Lock the graphics clock to a range, or unlock it."""
        bounds = None if value == "default" else parse_range(value)
        with self._model.modify() as model:
            model.set_gpu(self._index, model.gpu_state(self._index).limit_watts, bounds)


GPU_KNOBS = (ModelGpuPersistence, ModelGpuLimit, ModelGpuClocks)


def describe_gpu(model: RealtimeModel, index: int) -> GpuInfo:
    """Return the agent's description of one of the model's GPUs."""
    gpu = model.profile.gpu
    assert gpu is not None
    limits = gpu.default_limit_watts, gpu.min_limit_watts, gpu.max_limit_watts
    clocks = gpu.graphics_clocks_mhz[-1], gpu.graphics_clocks_mhz[0]
    return GpuInfo(index, index, gpu.name, *limits, clocks)
