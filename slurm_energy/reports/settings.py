"""Short description of a job's power settings. Equal settings of several nodes and devices are merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.records import AppliedSetting, EnergyRecord
from slurm_energy.slurm.hostlist import fold_hostlist

_NAME = re.compile(r"(?P<kind>[^\[]+)(?:\[(?P<place>.*)\])?")
_PLAIN_PLACE = re.compile(r"[a-z]+\d+")
_SHORT_NAMES = {
    "governor": "gov",
    "frequency": "freq",
    "power_limit": "cap",
    "locked_clocks": "clocks",
}
_SHOWN_FIRST = ("gov", "epp", "freq", "boost", "cap", "clocks")
_MEASURES_ONLY = "monitor"
_MEANS_TO_AN_END = ("time_window", "enabled", "persistence")


@dataclass(frozen=True, slots=True)
class MergedSetting:
    """A kind of setting with the same values at several places.

    Attributes:
        kind: for example `cpufreq.governor`.
        places: where it was set, for example `policy0`; empty for settings without a place.
        nodes: names of the nodes.
        fate: the common original, requested, applied and restored values, and the note.
    """

    kind: str
    places: tuple[str, ...]
    nodes: tuple[str, ...]
    fate: AppliedSetting

    @property
    def name(self) -> str:
        """Kind with its places, `cpufreq.governor[policy0-63]`."""
        if not self.places:
            return self.kind
        plain = all(_PLAIN_PLACE.fullmatch(place) for place in self.places)
        return f"{self.kind}[{fold_hostlist(self.places) if plain else ','.join(self.places)}]"


def applied_part(records: Sequence[EnergyRecord]) -> str | None:
    """Return how much of the policy was applied: `all`, `part` or `none`.

    `none` includes policies without settings for these nodes, for example `edp` without an entry for the
    hardware; the notes of the records give the reason. Returns None for `monitor`, which sets nothing.
    """
    fates = [[setting.applied is not None for setting in record.applied] for record in records]
    if not any(fates) and all(record.policy == _MEASURES_ONLY for record in records):
        return None
    if all(fate and all(fate) for fate in fates):
        return "all"
    return "part" if any(any(fate) for fate in fates) else "none"


def merge_settings(records: Iterable[EnergyRecord]) -> list[MergedSetting]:
    """Join settings of the same kind and values, in the order in which they were applied first."""
    groups: dict[tuple[object, ...], tuple[dict[str, None], dict[str, None], AppliedSetting]] = {}
    for record in records:
        for setting in record.applied:
            kind, place = split_setting(setting.setting)
            fate = (setting.original, setting.requested, setting.applied, setting.restored, setting.note)
            places, nodes, _ = groups.setdefault((kind, *fate), ({}, {}, setting))
            if place:
                places[place] = None
            nodes[record.node] = None
    return [
        MergedSetting(str(key[0]), tuple(places), tuple(nodes), fate)
        for key, (places, nodes, fate) in groups.items()
    ]


def split_setting(name: str) -> tuple[str, str]:
    """Split `cpufreq.governor[policy0]` into kind and place (empty when there is none)."""
    match = _NAME.fullmatch(name)
    return (match["kind"], match["place"] or "") if match else (name, "")


def short_settings(records: Iterable[EnergyRecord]) -> str:
    """Return one line such as `gov=powersave freq=800-2100MHz gpu.cap=300W`, failures marked with `!`.

    Values that differ between places are separated by `|`: `gpu.cap=250W|300W`. Auxiliary settings (the time
    window and the enable bit of a limit) are left out.
    """
    values: dict[str, dict[str, None]] = {}
    for merged in merge_settings(records):
        if merged.kind.endswith(_MEANS_TO_AN_END):
            continue
        fate = merged.fate
        text = fate.applied if fate.applied is not None else f"{fate.requested}!"
        values.setdefault(short_name(merged.kind), {})[text.replace(" ", "")] = None
    return " ".join(f"{name}={'|'.join(values[name])}" for name in sorted(values, key=_rank))


def short_name(kind: str) -> str:
    """Return `gov` for `cpufreq.governor`, `cpu.cap` for `powercap.power_limit`, `gpu.cap` for a GPU's."""
    interface, _, name = kind.rpartition(".")
    short = _SHORT_NAMES.get(name, name)
    if interface.startswith(("powercap", "hsmp")):
        return f"cpu.{short}"
    return f"gpu.{short}" if interface.startswith(("nvml", "gpu", "amdsmi")) else short


def _rank(name: str) -> tuple[int, str]:
    base = name.rpartition(".")[2]
    return (_SHOWN_FIRST.index(base) if base in _SHOWN_FIRST else len(_SHOWN_FIRST)), name
