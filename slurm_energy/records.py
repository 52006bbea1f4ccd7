"""The energy record and its parts: plain data that agent, controller and reports exchange as JSON.

A record describes one job (or one step of it) on one node. `None` means unknown and is never
written as 0. No behaviour beyond conversion and checks lives here.
"""

from __future__ import annotations

import dataclasses
import math
import re
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number

SCHEMA_VERSION = 1
_COMPONENT = re.compile(r"cpu|dram|other|node|gpu\[\d{1,3}\]")


class Quality(StrEnum):
    """How far a figure can be trusted."""

    MEASURED = "measured"
    MODELLED = "modelled"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class ComponentEnergy:
    """Energy of one component during a record's interval.

    Attributes:
        name: `cpu`, `dram`, `gpu[INDEX]`, `other` or `node`.
        energy_joules: joules, or None when not known.
        source: interface the figure came from, e.g. `powercap:intel-rapl`, `nvml:total_energy`.
        quality: measured, modelled or partial.
    """

    name: str
    energy_joules: float | None
    source: str | None
    quality: Quality = Quality.MEASURED


@dataclass(frozen=True, slots=True)
class AppliedSetting:
    """One power setting that a policy asked for and what became of it.

    Attributes:
        setting: kind and place, e.g. `cpufreq.governor[policy0-63]`, `powercap.power_limit[package-0]`.
        original: value found before; None if it cannot be read.
        asked: value the policy wanted.
        applied: value read back after writing; None if the write failed.
        restored: True once the original is back, False if that failed, None while the job runs.
        note: reason of a failure or deviation, empty otherwise.
    """

    setting: str
    original: str | None
    asked: str
    applied: str | None
    restored: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class EnergyRecord:
    """Energy and settings of one job or step on one node.

    Times are Unix seconds (UTC), powers watts, energies joules. `step` is None for the whole job,
    otherwise Slurm's step name (`batch`, `extern`, `0`, ...). `uncertain_seconds` is the time in which
    a counter may have lost wraps or was not readable. `fingerprint` is the digest of batch
    script and arguments, known on the node where the script ran. `peak_watts` is the highest mean over a
    second or more of what is measured fast, with the mean of `other` on top.
    """

    cluster: str
    node: str
    job_id: int
    uid: int
    policy: str
    start: float
    end: float
    components: tuple[ComponentEnergy, ...]
    step: str | None = None
    restart_count: int = 0
    sluid: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    model: str | None = None
    tag: str | None = None
    fingerprint: str | None = None
    asked: dict[str, str] = field(default_factory=dict)
    applied: tuple[AppliedSetting, ...] = ()
    cpus: int | None = None
    gpus: tuple[int, ...] = ()
    mean_watts: float | None = None
    peak_watts: float | None = None
    seconds_above_cap: float | None = None
    throttled_seconds: float | None = None
    uncertain_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    record_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def elapsed_s(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start

    @property
    def energy_joules(self) -> float | None:
        """Joules of the whole record: `node` if present, else the sum of the known components.

        None when no component is known.
        """
        known = {c.name: c.energy_joules for c in self.components if c.energy_joules is not None}
        if "node" in known:
            return known["node"]
        return math.fsum(known.values()) if known else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict, schema version included."""
        return {"schema": SCHEMA_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> EnergyRecord:
        """Build a record from `to_json` output.

        Raises:
            UsageError: wrong schema, missing or unknown keys, wrong types, negative or non-finite figures.
        """
        return _record_from_json(cls, data)


_TEXT_KEYS = ("cluster", "node", "policy", "record_id")
_OPTIONAL_TEXT_KEYS = ("step", "sluid", "user", "account", "partition", "model", "tag", "fingerprint")
_INT_KEYS = ("job_id", "uid", "restart_count")
_TIME_KEYS = ("start", "end", "uncertain_seconds")
_OPTIONAL_NUMBER_KEYS = ("mean_watts", "peak_watts", "seconds_above_cap", "throttled_seconds")


def _record_from_json(cls: type[EnergyRecord], data: Any) -> EnergyRecord:
    if not isinstance(data, dict):
        raise UsageError("energy record: not a JSON object")
    values = dict(data)
    schema = values.pop("schema", None)
    if schema != SCHEMA_VERSION:
        raise UsageError(
            f"energy record: schema {schema!r} is not {SCHEMA_VERSION}",
            todo="run the same slurm-energy release on nodes and controller",
        )
    known = {f.name for f in dataclasses.fields(cls)}
    if unknown := sorted(set(values) - known):
        raise UsageError(f"energy record: unknown key '{unknown[0]}'")
    for key in _TEXT_KEYS:
        _require(isinstance(values.get(key), str) and len(values[key]) <= 256, key, values)
    for key in _OPTIONAL_TEXT_KEYS:
        value = values.get(key)
        _require(value is None or (isinstance(value, str) and len(value) <= 1024), key, values)
    for key in _INT_KEYS:
        _require(_is_int(values.get(key, 0)) and values.get(key, 0) >= 0, key, values)
    for key in _TIME_KEYS:
        _require(_is_number(values.get(key, 0.0)), key, values)
    for key in _OPTIONAL_NUMBER_KEYS:
        _require(values.get(key) is None or _is_number(values[key]), key, values)
    _require(values["end"] >= values["start"], "end", values)
    _require(values.get("cpus") is None or (_is_int(values["cpus"]) and values["cpus"] >= 0), "cpus", values)
    asked = values.get("asked", {})
    _require(
        isinstance(asked, dict) and all(isinstance(x, str) for item in asked.items() for x in item),
        "asked",
        values,
    )
    values["gpus"] = tuple(_list(values, "gpus", _is_int))
    values["notes"] = tuple(_list(values, "notes", lambda note: isinstance(note, str)))
    values["components"] = tuple(_component(item) for item in _list(values, "components"))
    values["applied"] = tuple(_setting(item) for item in _list(values, "applied"))
    return cls(**values)


def _require(condition: bool, key: str, values: dict[str, Any]) -> None:
    if not condition:
        raise UsageError(f"energy record: bad value for '{key}': {str(values.get(key))[:60]!r}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return is_number(value) and value >= 0


def _list(values: dict[str, Any], key: str, check: Any = None) -> list[Any]:
    items = values.get(key, [])
    _require(isinstance(items, (list, tuple)) and len(items) <= 4096, key, values)
    if check is not None:
        _require(all(check(item) for item in items), key, values)
    return list(items)


def _component(data: Any) -> ComponentEnergy:
    try:
        component = ComponentEnergy(**{**data, "quality": Quality(data["quality"])})
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(f"energy record: bad component: {error}") from None
    joules = component.energy_joules
    if not (isinstance(component.name, str) and _COMPONENT.fullmatch(component.name)):
        raise UsageError(f"energy record: unknown component {str(component.name)[:40]!r}")
    if joules is not None and not _is_number(joules):
        raise UsageError(f"energy record: bad energy of {component.name}: {joules!r}")
    if not isinstance(component.source, str | None):
        raise UsageError(f"energy record: bad source of {component.name}")
    return component


def _setting(data: Any) -> AppliedSetting:
    try:
        setting = AppliedSetting(**data)
    except TypeError as error:
        raise UsageError(f"energy record: bad setting: {error}") from None
    texts = (setting.setting, setting.asked, setting.note)
    optional = (setting.original, setting.applied)
    if not (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(text, str | None) for text in optional)
        and isinstance(setting.restored, bool | None)
    ):
        raise UsageError(f"energy record: bad setting {str(setting.setting)[:60]!r}")
    return setting
