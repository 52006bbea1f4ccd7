"""Emulated files /dev/nvidiactl and /dev/nvidiaN. They contain the GPU state and accept commands.

The NVML stub reads the state and writes the commands. `native/nvidia_device.h` defines the layout of both.
/dev/nvidiactl contains one header and one record per GPU. A command consists of three 32-bit numbers that
root writes to /dev/nvidiaN.
"""

from __future__ import annotations

import errno
import struct
import uuid
from collections.abc import Iterable

from slurm_energy.errors import EnergyError
from slurm_energy_lab.model import GpuProfile, GpuState
from slurm_energy_lab.model.profile import PowerProfile
from slurm_energy_lab.realtime_model import RealtimeModel, SteppedCounter
from slurm_energy_lab.tree.entries import CharacterDevice, Tree, refuse
from slurm_energy_lab.tree.gpu_signals import RECORD, GpuSignals, GpuSignalValues

HEADER = struct.Struct("<8s4I80s80s")
DYNAMIC = struct.Struct("<2Q14I32s32s")
STATIC = struct.Struct("<Q12I2H256H8H96s80s")
PROFILE_COUNT = struct.Struct("<I")
PROFILE = struct.Struct("<2I32s")
MAX_PROFILES = 32
PROFILES_SIZE = PROFILE_COUNT.size + MAX_PROFILES * PROFILE.size
COMMAND = struct.Struct("<3I")
PROFILE_COMMAND = struct.Struct("<I32s")
MAGIC = b"SNRGYNV1"
RECORD_OFFSET = 4096
RECORD_STRIDE = 4096
ENERGY_INTERVAL_S = 0.02
"""Refresh interval of the energy counter. Real drivers use 20 to 100 ms, depending on the GPU."""

SET_POWER_LIMIT, LOCK_GRAPHICS, RESET_GRAPHICS, LOCK_MEMORY, RESET_MEMORY, SET_PERSISTENCE = range(1, 7)
CLEAR_PROFILES, ADD_PROFILES, REPLACE_PROFILES = range(7, 10)
ARCHITECTURES = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
UNKNOWN_MW = 0xFFFFFFFF
_CLOCK_LIMIT_IDS = 0xFFFFFF00
_REASON_IDLE, _REASON_CLOCKS_SETTING, _REASON_POWER_CAP, _REASON_THERMAL = 1, 2, 4, 32
_NVIDIA_VENDOR = 0x10DE

Range = tuple[int, int]


class NvidiaGpu(CharacterDevice):
    """One emulated NVIDIA GPU, with its settings, state and device file /dev/nvidiaN.

    Attributes:
        persistent: whether persistence mode is on.
        signals: values of activity, traffic, memory and temperature that the GPU shows.
    """

    __slots__ = (
        "_energy",
        "_energy_base_mj",
        "_index",
        "_limit_watts",
        "_locked_graphics",
        "_locked_memory",
        "_profile",
        "_realtime_model",
        "_requested_profiles",
        "_static",
        "persistent",
        "signals",
    )

    def __init__(
        self, realtime_model: RealtimeModel, profile: GpuProfile, node: str, index: int, persistent: bool
    ) -> None:
        super().__init__(0o666)
        self._realtime_model, self._profile, self._index = realtime_model, profile, index
        self.persistent = persistent
        self._energy_base_mj = 0
        self._energy = SteppedCounter(lambda model: model.gpu_state(index).energy_mj, ENERGY_INTERVAL_S)
        self._static = _static_record(profile, node, index)
        with realtime_model.now() as model:
            self.signals = GpuSignals(profile, model.now_s)
        self._reset_settings()

    def _reset_settings(self) -> None:
        self._limit_watts = self._profile.default_limit_watts
        self._locked_graphics: Range | None = None
        self._locked_memory: Range | None = None
        self._requested_profiles: frozenset[int] = frozenset()

    def reload_driver(self) -> None:
        """Reset all settings and the energy counter, as the unloading of the driver does."""
        self._reset_settings()
        with self._realtime_model.now() as model:
            self._energy_base_mj = model.gpu_state(self._index).energy_mj
        self._push()

    def record(self) -> bytes:
        """Return the current state of the GPU as a record.

        The layout is that of `native/nvidia_device.h`.
        """
        with self._realtime_model.now() as model:
            state = model.gpu_state(self._index)
            energy_mj = self._energy.value(model)
            signals, record = self.signals.record(state, model.now_s)
        return DYNAMIC.pack(*self._dynamic_fields(state, energy_mj, signals)) + self._static + record

    def _dynamic_fields(
        self, state: GpuState, energy_mj: int, signals: GpuSignalValues
    ) -> tuple[int | bytes, ...]:
        instant_mw = round(state.power_watts * 1000)
        average_mw = round(state.power_average_watts * 1000) if _has_average(self._profile) else UNKNOWN_MW
        reasons = state.idle * _REASON_IDLE | state.throttle_power_cap * _REASON_POWER_CAP
        reasons |= state.throttle_clocks_setting * _REASON_CLOCKS_SETTING
        reasons |= signals.is_hot * _REASON_THERMAL
        return (
            max(0, energy_mj - self._energy_base_mj),
            reasons,
            instant_mw if average_mw == UNKNOWN_MW else average_mw,
            instant_mw,
            average_mw,
            round(self._limit_watts * 1000),
            round(state.limit_watts * 1000),
            state.graphics_clock_mhz,
            state.graphics_clock_mhz,
            state.memory_clock_mhz,
            state.graphics_clock_mhz,
            round(signals.busy * 100),
            round(state.memory_utilisation * 100),
            int(self.persistent),
            signals.memory_used_mib,
            0,
            _mask(self._requested_profiles),
            _mask(profile.number for profile in self._enforced()),
        )

    def write_at(self, data: bytes, offset: int, uid: int) -> int:
        """Execute one command.

        Args:
            data: the command.
            offset: file offset, which must be 0.
            uid: uid of the writing process.

        Returns:
            The number of bytes written.

        Raises:
            OSError: EPERM unless root writes; EINVAL for an invalid command or value; EOPNOTSUPP if the GPU
                does not have the setting.
        """
        if len(data) not in (COMMAND.size, PROFILE_COMMAND.size) or offset:
            refuse(errno.EINVAL)
        if uid:
            refuse(errno.EPERM)
        if len(data) == COMMAND.size:
            self._command(*COMMAND.unpack(data))
        else:
            command, mask = PROFILE_COMMAND.unpack(data)
            self._request_profiles(command, _numbers(mask))
        return len(data)

    def _request_profiles(self, command: int, numbers: frozenset[int]) -> None:
        if not self._profile.power_profiles:
            refuse(errno.EOPNOTSUPP)
        if numbers - {profile.number for profile in self._profile.power_profiles}:
            refuse(errno.EINVAL)
        if command == CLEAR_PROFILES:
            self._requested_profiles -= numbers
        elif command == ADD_PROFILES:
            self._requested_profiles |= numbers
        elif command == REPLACE_PROFILES:
            self._requested_profiles = numbers
        else:
            refuse(errno.EINVAL)
        self._push()

    def _enforced(self) -> list[PowerProfile]:
        """Return the power profiles that the emulated GPU enforces.

        A requested profile is enforced if it does not conflict with another requested profile. Of two
        conflicting profiles, the one with the lower priority number is enforced.
        """
        enforced: list[PowerProfile] = []
        offered = sorted(self._profile.power_profiles, key=lambda profile: profile.priority)
        for profile in offered:
            conflicts = [
                o for o in enforced if profile.number in o.conflicts or o.number in profile.conflicts
            ]
            if profile.number in self._requested_profiles and not conflicts:
                enforced.append(profile)
        return enforced

    def _command(self, command: int, first: int, second: int) -> None:
        if command == SET_POWER_LIMIT:
            self._set_limit(first / 1000)
        elif command == LOCK_GRAPHICS:
            self._locked_graphics = _clock_range(self._profile.graphics_clocks_mhz, first, second)
        elif command == RESET_GRAPHICS:
            self._locked_graphics = None
        elif command == SET_PERSISTENCE and first in (0, 1):
            self.persistent = bool(first)
        elif command in (LOCK_MEMORY, RESET_MEMORY):
            if not _supports_memory_lock(self._profile):
                refuse(errno.EOPNOTSUPP)
            clocks = self._profile.memory_clocks_mhz
            self._locked_memory = None if command == RESET_MEMORY else _clock_range(clocks, first, second)
        else:
            refuse(errno.EINVAL)
        self._push()

    def _set_limit(self, watts: float) -> None:
        if not self._profile.min_limit_watts <= watts <= self._profile.max_limit_watts:
            refuse(errno.EINVAL)
        self._limit_watts = watts

    def _push(self) -> None:
        limit_watts, graphics = self._limit_watts, self._locked_graphics
        for profile in self._enforced():
            limit_watts = min(limit_watts, profile.limit_watts or limit_watts)
            if profile.max_graphics_mhz is not None:
                low, high = graphics or (min(self._profile.graphics_clocks_mhz), profile.max_graphics_mhz)
                graphics = min(low, profile.max_graphics_mhz), min(high, profile.max_graphics_mhz)
        with self._realtime_model.modify() as model:
            try:
                model.set_gpu(self._index, limit_watts, graphics, self._locked_memory)
            except EnergyError:
                refuse(errno.EINVAL)


class NvidiaControl(CharacterDevice):
    """Emulated file /dev/nvidiactl with a header and the state records of all GPUs.

    The emulated driver stays loaded while a client has the file open.
    """

    __slots__ = ("_clients", "_gpus", "_header", "_tree")

    def __init__(self, tree: Tree, profile: GpuProfile, gpus: list[NvidiaGpu]) -> None:
        super().__init__(0o666)
        self._tree = tree
        self._gpus = gpus
        self._clients = 0
        record_bytes = DYNAMIC.size + STATIC.size + PROFILES_SIZE + RECORD.size
        self._header = HEADER.pack(
            MAGIC,
            HEADER.size,
            record_bytes,
            len(gpus),
            _cuda_number(profile.cuda_version),
            profile.driver_version.encode(),
            f"13.{profile.driver_version}".encode(),
        )

    def client_opened(self) -> None:
        """Count one more client that has the emulated device file open."""
        self._clients += 1

    def client_closed(self) -> None:
        """Count a client that closes the file.

        When the last client closes the file, the driver of GPUs without persistence mode is unloaded.
        """
        self._clients -= 1
        if self._clients == 0:
            for gpu in self._gpus:
                if not gpu.persistent:
                    gpu.reload_driver()

    def read_at(self, size: int, offset: int) -> bytes:
        """Return the header from offset 0, or the state record of a GPU.

        The record of GPU i is at offset RECORD_OFFSET + i * RECORD_STRIDE.

        Raises:
            OSError: the fault that is injected for /dev/nvidia<i>. The NVML stub reports EIO as GPU_IS_LOST.
        """
        if offset < RECORD_OFFSET:
            return self._header[offset : offset + size]
        index, within = divmod(offset - RECORD_OFFSET, RECORD_STRIDE)
        if index >= len(self._gpus):
            return b""
        if code := self._tree.fault(f"/dev/nvidia{index}"):
            refuse(code)
        return self._gpus[index].record()[within : within + size]


def add_nvidia(tree: Tree, realtime_model: RealtimeModel, node: str, persistent: bool = True) -> None:
    """Add the device files of the GPUs, if the node has any.

    Args:
        tree: the node's file tree.
        realtime_model: the node's model.
        node: node name, from which the GPUs' UUIDs are derived.
        persistent: whether persistence mode is on from the start, as with nvidia-persistenced.
    """
    profile = realtime_model.profile.gpu
    if profile is None or not profile.count:
        return
    gpus = [NvidiaGpu(realtime_model, profile, node, index, persistent) for index in range(profile.count)]
    tree.add("/dev/nvidiactl", NvidiaControl(tree, profile, gpus))
    for index, gpu in enumerate(gpus):
        tree.add(f"/dev/nvidia{index}", gpu)


def gpu_uuid(profile: GpuProfile, node: str, index: int) -> str:
    """Return the UUID of a GPU in NVML's format."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{profile.uuid_seed}/{node}/{index}')}"


def _static_record(profile: GpuProfile, node: str, index: int) -> bytes:
    graphics, memory = profile.graphics_clocks_mhz[:256], profile.memory_clocks_mhz[:8]
    device = profile.pci_device_id
    if device <= 0xFFFF:
        device = device << 16 | _NVIDIA_VENDOR
    return STATIC.pack(
        profile.memory_mb << 20,
        round(profile.default_limit_watts * 1000),
        round(profile.min_limit_watts * 1000),
        round(profile.max_limit_watts * 1000),
        max(graphics),
        max(memory),
        ARCHITECTURES.get(profile.arch.lower(), 0xFFFFFFFF),
        *profile.compute_capability,
        0,
        0x07 + 0x10 * index,
        device,
        index,
        len(graphics),
        len(memory),
        *graphics,
        *[0] * (256 - len(graphics)),
        *memory,
        *[0] * (8 - len(memory)),
        profile.name.encode(),
        gpu_uuid(profile, node, index).encode(),
    ) + _profile_records(profile)


def _profile_records(profile: GpuProfile) -> bytes:
    """Return the workload power profiles of a GPU.

    The layout is that of `native/nvidia_device.h`.
    """
    records = [PROFILE.pack(one.number, one.priority, _mask(one.conflicts)) for one in profile.power_profiles]
    return (PROFILE_COUNT.pack(len(records)) + b"".join(records)).ljust(PROFILES_SIZE, b"\0")


def _mask(numbers: Iterable[int]) -> bytes:
    """Return a mask of 256 bits, little-endian, in which the bits with these numbers are set."""
    return sum(1 << number for number in set(numbers)).to_bytes(32, "little")


def _numbers(mask: bytes) -> frozenset[int]:
    bits = int.from_bytes(mask, "little")
    return frozenset(number for number in range(256) if bits >> number & 1)


def _has_average(profile: GpuProfile) -> bool:
    """Return whether the GPU reports average power.

    GA100 and older GPUs report only instantaneous power.
    """
    return profile.compute_capability >= (8, 6)


def _supports_memory_lock(profile: GpuProfile) -> bool:
    return profile.compute_capability >= (8, 0)


def _clock_range(clocks: tuple[int, ...], low: int, high: int) -> Range:
    """Return a requested clock range in MHz, clamped to the GPU's clocks.

    NVML's symbolic limits stand for the maximum clock.

    Args:
        clocks: the GPU's clocks.
        low: minimum, or one of NVML's symbolic limits.
        high: maximum, or one of NVML's symbolic limits.
    """
    top = max(clocks)
    low, high = (top if mhz >= _CLOCK_LIMIT_IDS else mhz for mhz in (low, high))
    if low > high:
        refuse(errno.EINVAL)
    floor = min(clocks)
    return min(max(low, floor), top), min(max(high, floor), top)


def _cuda_number(version: str) -> int:
    """Return a CUDA version as a number, for example 12040 for `12.4`."""
    major, _, minor = version.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10
