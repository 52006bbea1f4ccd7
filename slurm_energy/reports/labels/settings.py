"""Short description of a job's power settings. Equal settings of several nodes and devices are merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.records import AppliedSetting, EnergyRecord
from slurm_energy.slurm.hostlist import fold_hostlist

_NAME = re.compile(r"(?P<type>[^\[]+)(?:\[(?P<instance>.*)\])?")
_NUMBERED_INSTANCE = re.compile(r"[a-z]+\d+")
_SHORT_NAMES = {
    "governor": "gov",
    "frequency": "freq",
    "power_limit": "cap",
    "locked_clocks": "clocks",
}
_DISPLAY_ORDER = ("gov", "epp", "freq", "boost", "cap", "clocks")
_MONITOR = "monitor"
_AUXILIARY_SUFFIXES = ("time_window", "enabled", "persistence")


@dataclass(frozen=True, slots=True)
class MergedSetting:
    """A setting that has the same values on several nodes, and on several devices of one type.

    Attributes:
        setting_type: type of the setting, for example `cpufreq.governor`.
        instances: devices or cpufreq policies that have the setting, for example `policy0`; empty for
            settings without instances.
        nodes: names of the nodes.
        setting: the common original, requested, applied and restored values, and the note.
    """

    setting_type: str
    instances: tuple[str, ...]
    nodes: tuple[str, ...]
    setting: AppliedSetting

    @property
    def name(self) -> str:
        """Name of a kind of setting, followed by the instances with equal values in brackets.

        Example: `cpufreq.governor[policy0-63]`.
        """
        if not self.instances:
            return self.setting_type
        plain = all(_NUMBERED_INSTANCE.fullmatch(instance) for instance in self.instances)
        return f"{self.setting_type}[{fold_hostlist(self.instances) if plain else ','.join(self.instances)}]"


def applied_part(records: Sequence[EnergyRecord]) -> str | None:
    """Return how much of the energy policy's settings was applied: `all`, `part` or `none`.

    The result is also `none` if the energy policy has no settings for these nodes. An example is `edp`
    without an entry for the hardware. In this case the notes of the records state the reason. The result is
    None for the policy `monitor`, which has no settings at all.
    """
    applied_flags = [[setting.applied is not None for setting in record.applied] for record in records]
    if not any(applied_flags) and all(record.policy == _MONITOR for record in records):
        return None
    if all(flags and all(flags) for flags in applied_flags):
        return "all"
    return "part" if any(any(flags) for flags in applied_flags) else "none"


def merge_settings(records: Iterable[EnergyRecord]) -> list[MergedSetting]:
    """Merge settings of the same type and values.

    The order of the result is the order in which the settings were first applied.
    """
    groups: dict[tuple[object, ...], tuple[dict[str, None], dict[str, None], AppliedSetting]] = {}
    for record in records:
        for setting in record.applied:
            setting_type, instance = split_setting(setting.setting)
            values = (setting.original, setting.requested, setting.applied, setting.restored, setting.note)
            instances, nodes, _ = groups.setdefault((setting_type, *values), ({}, {}, setting))
            if instance:
                instances[instance] = None
            nodes[record.node] = None
    return [
        MergedSetting(str(key[0]), tuple(instances), tuple(nodes), setting)
        for key, (instances, nodes, setting) in groups.items()
    ]


def split_setting(name: str) -> tuple[str, str]:
    """Split `cpufreq.governor[policy0]` into type and instance (empty without brackets)."""
    match = _NAME.fullmatch(name)
    return (match["type"], match["instance"] or "") if match else (name, "")


def short_settings(records: Iterable[EnergyRecord]) -> str:
    """Return the settings of a job as one line of text. A `!` marks a failed setting.

    Example: `gov=powersave freq=800-2100MHz gpu.cap=300W`.

    If a setting has different values on several devices, the values are separated by `|`:
    `gpu.cap=250W|300W`. Auxiliary settings (the time window and the enable bit of a limit) are left out.
    """
    values: dict[str, dict[str, None]] = {}
    for merged in merge_settings(records):
        if merged.setting_type.endswith(_AUXILIARY_SUFFIXES):
            continue
        setting = merged.setting
        text = setting.applied if setting.applied is not None else f"{setting.requested}!"
        values.setdefault(short_name(merged.setting_type), {})[text.replace(" ", "")] = None
    return " ".join(f"{name}={'|'.join(values[name])}" for name in sorted(values, key=_rank))


def short_name(setting_type: str) -> str:
    """Return a short name for a type of setting.

    The name is `gov` for `cpufreq.governor`, `cpu.cap` for `powercap.power_limit`, and `gpu.cap` for a GPU's
    power limit.
    """
    interface, _, name = setting_type.rpartition(".")
    short = _SHORT_NAMES.get(name, name)
    if interface.startswith(("powercap", "hsmp")):
        return f"cpu.{short}"
    return f"gpu.{short}" if interface.startswith(("nvml", "gpu", "amdsmi")) else short


def _rank(name: str) -> tuple[int, str]:
    base = name.rpartition(".")[2]
    return (_DISPLAY_ORDER.index(base) if base in _DISPLAY_ORDER else len(_DISPLAY_ORDER)), name
