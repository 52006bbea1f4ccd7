"""Parser of gres.conf, and of the key Gres of slurm.conf, as far as they describe the GPUs of a node.

The parser only reads files and queries no daemon. Source: Slurm 22.05 to 26.05, src/interfaces/gres.c
(src/common/gres.c in 22.05), _parse_gres_config, _parse_gres_config_node, _get_gres_cnt; gres.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.hostlist import contains_node

GpuCounts = Sequence[tuple[str | None, int]]
"""Numbers of GPUs by GRES type, in the order of the key Gres; the type is None if Gres names none."""

_MAX_GPUS: Final = 1024
_GROUP: Final = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+")
_BRACKET: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
_RANGE: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_COUNT: Final = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """GPUs of one line of gres.conf, or GPUs that only slurm.conf counts.

    Attributes:
        kind: GRES type; None if there is none.
        count: number of GPUs.
        files: device files of the GPUs; empty if no file is named.
        text: unchanged value of File or MultipleFiles in gres.conf.
        is_one_gpu: whether all files belong to a single GPU (MultipleFiles).
    """

    kind: str | None
    count: int
    files: tuple[str, ...] = ()
    text: str = ""
    is_one_gpu: bool = False

    @property
    def files_by_gpu(self) -> tuple[tuple[str, ...], ...]:
        """Device files of each GPU of the record."""
        return (self.files,) if self.is_one_gpu else tuple((file,) for file in self.files)


@dataclass(frozen=True, slots=True)
class GresConf:
    """Statements of gres.conf about the GPUs of a node.

    Attributes:
        auto_detect: value of AutoDetect in lower case; empty if not set.
        records: one record for each line about GPUs, in the order in which slurmd reads the lines.
    """

    auto_detect: str
    records: tuple[GpuRecord, ...]


def read_gres_conf(path: Path, node: str) -> GresConf:
    """Return the statements of gres.conf about the GPUs of a node.

    Args:
        path: path of gres.conf.
        node: NodeName of the node.

    Raises:
        OSError: the file, or a file that it includes, cannot be read.
        UsageError: a value cannot be parsed.
    """
    shared, own = list[GpuRecord](), list[GpuRecord]()
    auto_detect = {"all": "", "own": ""}
    for pairs in conf_files.read_pairs(path):
        while pairs and pairs[0][0] == "autodetect":
            auto_detect["all"] = pairs.pop(0)[1]
        key, value = pairs[0] if pairs else ("", "")
        values = dict(pairs[1:])
        if key == "name":
            shared += _records(value, values)
        elif key == "nodename" and contains_node(node, value):
            auto_detect["own"] = values.get("autodetect", auto_detect["own"])
            own += _records(values.get("name", ""), values)
    return GresConf((auto_detect["own"] or auto_detect["all"]).lower(), (*shared, *own))


def node_gpus(settings: Mapping[str, list[str]], node: str) -> GpuCounts | None:
    """Return the GPUs of a node that slurm.conf counts; None if slurm.conf does not list the node.

    Args:
        settings: result of `conf_files.read_settings`.
        node: NodeName of the node.

    Raises:
        UsageError: a value cannot be parsed.
    """
    default = ""
    for line in settings.get("nodename", ()):
        nodes, *rest = line.split(None, 1)
        is_default = nodes.lower() == "default"
        if not is_default and not contains_node(node, nodes):
            continue
        gres = dict(conf_files.line_pairs(rest[0] if rest else "")).get("gres", default)
        if not is_default:
            return _gpu_counts(gres)
        default = gres
    return None


def _gpu_counts(gres: str) -> GpuCounts:
    """Return the numbers of GPUs by type in a value of Gres such as `gpu:a100:4(S:0-1),gpu:v100:2`."""
    counts: dict[str | None, int] = {}
    for item in gres.split(","):
        name, *parts = item.partition("(")[0].strip().split(":")
        if name != "gpu":
            continue
        count = parts.pop() if parts and parts[-1][:1].isdigit() else "1"
        if not _is_count(count):
            raise UsageError(f"Gres={shown(gres)}", f"'{shown(count)}' is not a number of GPUs")
        kind = next((part for part in parts if part and part.lower() != "no_consume"), None)
        counts[kind] = counts.get(kind, 0) + int(count)
    return tuple(counts.items())


def _is_count(text: str) -> bool:
    """Return whether a text is a plausible number of GPUs. A larger one would fill the memory."""
    return _COUNT.fullmatch(text) is not None and int(text) <= _MAX_GPUS


def _records(name: str, values: Mapping[str, str]) -> list[GpuRecord]:
    """Return the record of a line of gres.conf as a list. The list is empty if the line is not about GPUs."""
    if name != "gpu":
        return []
    text = values.get("file") or values.get("files") or values.get("multiplefiles") or ""
    is_one_gpu = bool(text) and "file" not in values and "files" not in values
    files = tuple(islice(_device_files(text), _MAX_GPUS + 1))
    if len(files) > _MAX_GPUS:
        raise UsageError(f"File={shown(text)}", f"names more than {_MAX_GPUS} files")
    count = values.get("count", "1")
    if not files and not _is_count(count):
        raise UsageError(f"Count={shown(count)}", "is not a number of GPUs")
    number = 1 if is_one_gpu else len(files) or int(count)
    return [GpuRecord(values.get("type"), number, files, text, is_one_gpu)]


def _device_files(text: str) -> Iterator[str]:
    """Yield the files in a list such as `/dev/nvidia[0-3,5],/dev/nvidia7`, in the order of the list.

    Slurm parses the list as a host list and keeps its order.
    """
    if _GROUP.sub("", text).strip(", \t"):
        raise UsageError(f"File={shown(text)}", "is not a list of files")
    for group in _GROUP.findall(text):
        match = _BRACKET.fullmatch(group)
        if match is None and "[" in group:
            raise UsageError(f"File={shown(text)}", f"'{shown(group)}' has several brackets")
        yield from _in_bracket(text, *match.groups()) if match else (group,)


def _in_bracket(text: str, prefix: str, ranges: str, suffix: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(_MAX_GPUS):
            raise UsageError(f"File={shown(text)}", f"'{shown(part)}' is not a range of files")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield f"{prefix}{number:0{len(match[1])}d}{suffix}"
