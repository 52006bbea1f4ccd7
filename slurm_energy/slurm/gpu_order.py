"""The order in which Slurm numbers the GPUs of a node.

slurmd numbers the GPUs in its list from 0. SLURM_JOB_GPUS of prolog and epilog contains these numbers. The
order of the list depends on the configuration:

- Without automatic detection, the list has the GPUs of gres.conf. Lines that begin with NodeName come after
  lines that begin with Name. The GRES types have the order of the key Gres in slurm.conf, and GPUs beyond the
  counts in Gres are left out.
- With automatic detection, the list has the detected GPUs that match a GPU of gres.conf or of Gres. They have
  the order of NVML with AutoDetect=nvml, and the order of their files with AutoDetect=nvidia. GPUs that only
  gres.conf names come last.

If the plugin for the automatic detection is not installed, slurmd detects nothing. Source: Slurm 22.05 to
26.05, src/interfaces/gres.c (src/common/gres.c in 22.05), _merge_config and gres_node_config_load;
src/plugins/gres/gpu/gres_gpu.c, _merge_system_gres_conf; src/interfaces/gpu.c, _get_gpu_type;
src/plugins/gpu/nvml/gpu_nvml.c; src/plugins/gpu/nvidia/gpu_nvidia.c.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.devices.sysfs import natural_key
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.gres_conf import GpuCounts, GpuRecord, GresConf, node_gpus, read_gres_conf
from slurm_energy.slurm.plugin_files import Settings, plugin_directories

GRES_CONF: Final = "gres.conf"
_NVIDIA_FILE: Final = re.compile(r"nvidia[0-9]+")
_DETECTIONS: Final = ("full", "nvml", "rsmi", "oneapi", "nrt", "nvidia")
"""Values of AutoDetect in the order in which Slurm searches for them. `full` (26.05) tries all the others."""

_FileKey = tuple[bool, list[tuple[int, str]]]


class UnreadableError(UnavailableError):
    """slurm.conf, gres.conf or a file that they include cannot be read, so that their content is unknown."""


@dataclass(frozen=True, slots=True)
class DetectedGpu:
    """A GPU as an automatic detection of Slurm describes it.

    Attributes:
        file: path of the device file.
        kind: GRES type, which is the name of the product in lower case with underscores for spaces.
        position: position that the detection states; None if it states none.
    """

    file: str
    kind: str | None
    position: int | None


@dataclass(frozen=True, slots=True)
class GpuOrder:
    """Order in which Slurm numbers the GPUs of a node.

    Attributes:
        source: `gres.conf`, or the automatic detection that decides the order, such as `AutoDetect=nvml`.
        names: names of the device files of each GPU, such as `nvidia0`, by Slurm's number of the GPU.
    """

    source: str
    names: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return the order as text, such as `gres.conf: 0 is nvidia1, 1 is nvidia0`."""
        texts = (f"{number} is {'+'.join(names)}" for number, names in enumerate(self.names))
        return f"{self.source}: {', '.join(texts)}"

    def numbers(self, name: str) -> frozenset[int]:
        """Return Slurm's numbers of the GPU whose device file has the given name."""
        return frozenset(number for number, names in enumerate(self.names) if name in names)


def detected_gpus(gpus: Iterable[GpuInfo]) -> tuple[DetectedGpu, ...]:
    """Return the NVIDIA GPUs of a node as Slurm detects them.

    The result is empty if the node has no NVIDIA GPU, if the minor number of one is unknown, or if one is
    divided into MIG instances, because Slurm then numbers the instances.
    """
    nvidia = [gpu for gpu in gpus if gpu.interface == "nvml"]
    if any(gpu.minor is None or gpu.partitioned for gpu in nvidia):
        return ()
    return tuple(
        DetectedGpu(f"/dev/nvidia{gpu.minor}", gpu.name.lower().replace(" ", "_"), gpu.index)
        for gpu in nvidia
    )


def read_gpu_order(conf: Path | None, node: str, gpus: Sequence[DetectedGpu]) -> GpuOrder:
    """Return the order in which Slurm numbers the NVIDIA GPUs of a node.

    Args:
        conf: path of slurm.conf; None means that it was not found.
        node: NodeName of the node.
        gpus: all NVIDIA GPUs of the node, in the order of NVML. The result of an automatic detection by Slurm
            is derived from them.

    Raises:
        UnreadableError: a file cannot be read.
        UnavailableError: the files do not determine the order.
    """
    if conf is None:
        raise UnreadableError("slurm.conf", "not found")
    path = conf.with_name(GRES_CONF)
    try:
        settings = conf_files.read_settings(conf, strict=True)
        counts, gres = node_gpus(settings, node), read_gres_conf(path, node)
    except OSError as error:
        raise UnreadableError(str(error.filename or path), error.strerror or str(error)) from None
    except (UsageError, ValueError) as error:  # ValueError: a path with a null character
        raise UnavailableError(str(path), str(error)) from None
    detection = _detection(gres, settings)
    if counts is None and not detection and len({record.kind for record in gres.records}) > 1:
        raise UnavailableError(str(conf), f"does not list node {node}, whose GPUs have several types")
    if detection == "nvidia":
        gpus = [dataclasses.replace(gpu, position=None) for gpu in gpus]
    files = gpu_files(counts, gres.records, gpus if detection else None)
    expected = len(files) if counts is None else sum(count for _, count in counts)
    if not files or len(files) != expected:
        why = f"{len(files)} GPUs of node {node} have device files, and {conf.name} counts {expected}"
        raise UnavailableError(str(path), why)
    names = tuple(tuple(map(_device_name, own)) for own in files)
    order = GpuOrder(f"AutoDetect={detection}" if detection else GRES_CONF, names)
    if not any(order.numbers(_device_name(gpu.file)) for gpu in gpus):
        raise UnavailableError(str(path), f"names no NVIDIA GPU of node {node}")
    return order


def _detection(gres: GresConf, settings: Settings) -> str:
    """Return the automatic detection of NVIDIA GPUs that is in force: `nvml`, `nvidia`, or an empty text."""
    named = next((name for name in _DETECTIONS if name in gres.auto_detect), "")
    candidates = (name for name in ("nvml", "nvidia") if named in (name, "full"))
    return next((name for name in candidates if _may_be_installed(f"gpu_{name}.so", settings)), "")


def _may_be_installed(plugin: str, settings: Settings) -> bool:
    """Return whether slurmd has a plugin, or whether this is unknown.

    PluginDir of slurm.conf replaces the built-in directory of slurmd.
    """
    named = [Path(part) for value in settings.get("plugindir", [])[-1:] for part in value.split(":") if part]
    try:
        directories = [path for path in named if path.is_dir()] or plugin_directories(settings)
        return not directories or any((directory / plugin).exists() for directory in directories)
    except OSError:  # senergyd may not search the directory: its unit has no CAP_DAC_OVERRIDE
        return True


def gpu_files(
    counts: GpuCounts | None, records: Sequence[GpuRecord], detected: Sequence[DetectedGpu] | None
) -> tuple[tuple[str, ...], ...]:
    """Return the device files of each GPU of a node, in the order in which Slurm numbers the GPUs.

    Args:
        counts: numbers of the node's GPUs by type in slurm.conf; None if slurm.conf does not list the node.
        records: GPUs in gres.conf.
        detected: result of the automatic detection; None means that nothing is detected.
    """
    if counts is not None:
        records = _merged(counts, records)
    elif not records and detected is not None:
        records = [GpuRecord(None, len(detected))]
    if detected is None:
        return tuple(files for record in records for files in record.files_by_gpu)
    return _merged_with_detected(records, detected)


def _merged(counts: GpuCounts, records: Iterable[GpuRecord]) -> list[GpuRecord]:
    """Return the GPUs of slurm.conf, with their files from gres.conf: `_merge_gres2` of Slurm."""
    unused, merged = list(records), list[GpuRecord]()
    for kind, count in counts:
        for record in list(unused):
            if count and (kind is None or kind.lower() == (record.kind or "").lower()):
                unused.remove(record)
                merged.append(_first_gpus(record, count, kind and record.kind))
                count -= merged[-1].count
        if count:
            merged.append(GpuRecord(kind, count))
    return merged


def _first_gpus(record: GpuRecord, count: int, kind: str | None) -> GpuRecord:
    """Return a record with its first GPUs only, at most `count`."""
    if record.count <= count:
        return dataclasses.replace(record, kind=kind)
    files = record.files[:count]
    return GpuRecord(kind, count, files, ",".join(files))


def _merged_with_detected(
    records: Iterable[GpuRecord], detected: Sequence[DetectedGpu]
) -> tuple[tuple[str, ...], ...]:
    """Return the files of the GPUs with automatic detection: `_merge_system_gres_conf` of Slurm."""
    singles = sorted((one for record in records for one in _single_gpus(record)), key=_kind_key)
    unused = sorted(_with_configured_kinds(detected, singles), key=lambda gpu: _file_key(gpu.file))
    chosen: list[tuple[tuple[bool, int, _FileKey], tuple[str, ...]]] = []
    for single in sorted(singles, key=lambda one: _file_key(one.text)):
        match = next((gpu for gpu in unused if _matches(single, gpu)), None)
        if match is not None:
            unused.remove(match)
            chosen.append((_position_key(match.position, match.file), (match.file,)))
        elif single.files:
            chosen.append((_position_key(None, single.text), single.files))
    return tuple(files for _, files in sorted(chosen, key=lambda pair: pair[0]))


def _position_key(position: int | None, file: str) -> tuple[bool, int, _FileKey]:
    return position is None, position or 0, _file_key(file)


def _single_gpus(record: GpuRecord) -> list[GpuRecord]:
    """Return a record as records of one GPU each."""
    if record.count == 1:
        return [record]
    files: Sequence[tuple[str, ...]] = record.files_by_gpu or ((),) * record.count
    return [GpuRecord(record.kind, 1, own, "".join(own)) for own in files]


def _with_configured_kinds(
    detected: Iterable[DetectedGpu], singles: Sequence[GpuRecord]
) -> Sequence[DetectedGpu]:
    """Return detected GPUs with the types that the configuration gives them.

    A configured type is a part of the name of the product. This is `_normalize_sys_gres_types` of Slurm.

    Args:
        detected: detected GPUs.
        singles: configured GPUs, sorted by `_kind_key`.
    """
    unused = [one.kind for one in singles if one.kind]
    strips = not unused
    result = []
    for gpu in sorted(detected, key=_kind_key):
        product = (gpu.kind or "").lower()
        kind = next((kind for kind in unused if kind.lower() in product), None)
        if kind is not None:
            unused.remove(kind)
        result.append(dataclasses.replace(gpu, kind=kind or (None if strips else gpu.kind)))
    return result


def _kind_key(gpu: GpuRecord | DetectedGpu) -> tuple[int, str, _FileKey]:
    """Return the key by which Slurm sorts GPUs by type: long types first; without types the order stays."""
    if gpu.kind is None:
        return 0, "", _file_key("")
    return -len(gpu.kind), gpu.kind, _file_key(gpu.file if isinstance(gpu, DetectedGpu) else gpu.text)


def _file_key(file: str) -> _FileKey:
    """Return the key by which Slurm sorts files: `nvidia2` before `nvidia10`, GPUs without a file last."""
    return not file, natural_key(file)


def _matches(single: GpuRecord, gpu: DetectedGpu) -> bool:
    return single.kind in (None, gpu.kind) and single.text in ("", gpu.file)


def _device_name(file: str) -> str:
    """Return the name of a device file. Symbolic links to the files of NVIDIA GPUs are resolved."""
    path = Path(file)
    if _NVIDIA_FILE.fullmatch(path.name):
        return path.name
    try:
        return path.resolve().name
    except (OSError, RuntimeError, ValueError):  # a loop of links; a null character
        return path.name
