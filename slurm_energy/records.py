"""The energy record and its parts: plain data that agent, controller and reports exchange as JSON.

A record describes one job, or one Slurm step of a job, on one node. `None` means unknown and is never written
as 0. This module contains only conversion and validation.

A release may add keys without a new schema version: readers keep keys that they do not know, and write these
keys again when they return the record. If the meaning or the set of values of a key changes, the schema
version must change too. Older readers then reject the record with `NewerSchemaError`, and the sender stores
it for later.
"""

from __future__ import annotations

import dataclasses
import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number
from slurm_energy.tuning_record import check_tuning

SCHEMA_VERSION = 1
MAX_GPUS: Final = 1000
MAX_ITEMS: Final = 4096
"""Maximum length of a list in a record."""
MAX_EXTRA_KEYS: Final = 64
"""Maximum number of unknown keys in a record, and in each component and setting."""
MAX_EXTRA_DEPTH: Final = 16
"""Maximum nesting depth of the value of an unknown key; databases limit the depth of JSON."""
MAX_SETTING_TEXT: Final = 16_384
"""Maximum length of a text in a setting. Such a text may list every CPU."""
_MAX_NAME, _MAX_TEXT = 256, 1024
_MAX_CPUS, _MAX_UID = 1_000_000, 2**32 - 1
_COMPONENT = re.compile(r"cpu|dram|other|node|gpu\[\d{1,3}\]")
_DEVICE = re.compile(r"cpu|gpu\[\d{1,3}\]")

Extra = tuple[tuple[str, Any], ...]
"""Keys that this release does not know, with their original values."""


class NewerSchemaError(UsageError):
    """The schema version of a record is newer than the version that this release reads."""


class Quality(StrEnum):
    """Quality of an energy value.

    A value is measured, modelled, or measured for only a part of the time or of the hardware.
    """

    MEASURED = "measured"
    MODELLED = "modelled"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class ComponentEnergy:
    """Energy of one component during the time of a record.

    Attributes:
        name: `cpu`, `dram`, `gpu[INDEX]`, `other` (the rest of the node) or `node` (the whole node).
        energy_joules: energy; None if unknown.
        source: interface that supplied the value, such as `powercap:intel-rapl` or `nvml:total_energy`.
        quality: measured, modelled or partial.
        extra: keys of a newer release that this release does not know.
    """

    name: str
    energy_joules: float | None
    source: str | None
    quality: Quality = Quality.MEASURED
    extra: Extra = ()


@dataclass(frozen=True, slots=True)
class AppliedSetting:
    """A hardware setting that an energy policy requested, with the result of the write.

    Attributes:
        setting: key of the setting, such as `cpufreq.governor[policy0-63]` or
            `powercap.power_limit[package-0]`.
        original: value before the job; None if the value could not be read.
        requested: value that the policy requested.
        applied: value read back after the write; None if the write failed.
        restored: whether the original value was restored; None while the job is running.
        note: why the write failed or why the applied value differs from the requested one; empty if the write
            succeeded without deviation.
        extra: keys of a newer release that this release does not know.
    """

    setting: str
    original: str | None
    requested: str
    applied: str | None
    restored: bool | None = None
    note: str = ""
    extra: Extra = ()


@dataclass(frozen=True, slots=True)
class JobDevice:
    """A processor or GPU on which the job ran.

    Attributes:
        name: `cpu` or `gpu[INDEX]`.
        product: product name from Linux or from the driver.
        min_cap_watts: minimum power limit of the device; None if unknown or the device has no power limit.
        max_cap_watts: power limit of the device before the job started. No job may exceed this limit. None
            if the limit is unknown or there was no limit.
        extra: keys of a newer release that this release does not know.
    """

    name: str
    product: str
    min_cap_watts: float | None = None
    max_cap_watts: float | None = None
    extra: Extra = ()


@dataclass(frozen=True, slots=True)
class EnergyRecord:
    """Energy and settings of one job or one Slurm step on one node.

    Times are Unix seconds (UTC), powers watts, energies joules. `step` is None for the whole job, otherwise
    Slurm's step name (`batch`, `extern`, `0`, ...). `requested` holds the energy flags of the job. `applied`
    lists the hardware settings. `uncertain_seconds` is the time in which a counter was unreadable or may have
    wrapped unnoticed. `fingerprint` is the digest of the batch script and its arguments; the digest is set
    only on the node that ran the script. `peak_watts` is the sum of two powers: the maximum mean power over a
    second or more of the components that are sampled fast, and the mean power of `other`.
    `budget_capped_seconds` is the time in which a power budget held a device below the job's own limit; None
    if no budget applied. `tuning` describes how the job was tuned to its objective, see `tuning_record`; None
    if the job has no objective. `extra` holds keys of a newer release that this release does not know.
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
    partition: str | None = None
    model: str | None = None
    tag: str | None = None
    fingerprint: str | None = None
    requested: dict[str, str] = field(default_factory=dict)
    applied: tuple[AppliedSetting, ...] = ()
    devices: tuple[JobDevice, ...] = ()
    cpus: int | None = None
    gpus: tuple[int, ...] = ()
    mean_watts: float | None = None
    peak_watts: float | None = None
    seconds_above_cap: float | None = None
    throttled_seconds: float | None = None
    budget_capped_seconds: float | None = None
    uncertain_seconds: float = 0.0
    tuning: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    record_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    extra: Extra = ()

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start to the end of the record."""
        return self.end - self.start

    @property
    def energy_joules(self) -> float | None:
        """Energy of the record in joules; None if no component's energy is known.

        If the energy of the component `node` (the whole node) is known, it is returned. Otherwise the result
        is the sum over the known components.
        """
        known = {c.name: c.energy_joules for c in self.components if c.energy_joules is not None}
        if "node" in known:
            return known["node"]
        return math.fsum(known.values()) if known else None

    def to_json(self) -> dict[str, Any]:
        """Return the record as a dict for JSON, with the schema version.

        Keys that only a newer release knows are kept.
        """
        data = _to_object(self)
        for key in ("components", "applied", "devices"):
            data[key] = [_to_object(item) for item in data[key]]
        data["requested"] = dict(self.requested)
        return {"schema": SCHEMA_VERSION, **data}

    @classmethod
    def from_json(cls, data: Any) -> EnergyRecord:
        """Build a record from a dict that `to_json` returned.

        Raises:
            NewerSchemaError: the schema version is newer than this release reads.
            UsageError: the schema version or a key is missing; a type is wrong; a number is negative or not
                finite; a list or text is longer than permitted.
        """
        return _record_from_json(cls, data)


_MAX_BUDGET_SHARE = 0.05


def is_budget_limited(budget_capped_s: float | None, elapsed_s: float) -> bool:
    """Return whether a power budget may have changed the duration and energy of a run notably.

    Whether a device drew as much as the budget permitted is not recorded. Therefore all the time counts in
    which the budget held a device below the job's own limit.

    Args:
        budget_capped_s: value of `EnergyRecord.budget_capped_seconds`.
        elapsed_s: seconds from the start to the end of the record.
    """
    return (budget_capped_s or 0.0) > _MAX_BUDGET_SHARE * elapsed_s


_NAME_KEYS = ("cluster", "node", "policy", "record_id")
_OPTIONAL_NAME_KEYS = ("step", "sluid", "user", "partition", "model", "tag", "fingerprint")
_INT_KEYS = ("job_id", "restart_count")
_TIME_KEYS = ("start", "end", "uncertain_seconds")
_OPTIONAL_NUMBER_KEYS = (
    "mean_watts",
    "peak_watts",
    "seconds_above_cap",
    "throttled_seconds",
    "budget_capped_seconds",
)


def _record_from_json(cls: type[EnergyRecord], data: Any) -> EnergyRecord:
    if not isinstance(data, dict):
        raise UsageError("energy record: not a JSON object")
    values, extra = _split(data, cls)
    _check_schema(dict(extra).get("schema"))
    extra = tuple(item for item in extra if item[0] != "schema")
    _check_extra(extra)
    for key in _NAME_KEYS:
        _require(is_name(values.get(key), _MAX_NAME), key, values)
    for key in _OPTIONAL_NAME_KEYS:
        _require(values.get(key) is None or is_name(values[key], _MAX_TEXT), key, values)
    for key in _INT_KEYS:
        _require(_is_count(values.get(key, 0)), key, values)
    _require(_is_count(values.get("uid"), _MAX_UID), "uid", values)
    for key in _TIME_KEYS:
        _require(_is_number(values.get(key, 0.0)), key, values)
    for key in _OPTIONAL_NUMBER_KEYS:
        _require(values.get(key) is None or _is_number(values[key]), key, values)
    _require("job_id" in values, "job_id", values)
    _require(all(key in values for key in ("start", "end")), "start", values)
    _require(values["end"] >= values["start"], "end", values)
    _require(values.get("cpus") is None or _is_count(values["cpus"], _MAX_CPUS), "cpus", values)
    values["requested"] = _requested(values)
    values["gpus"] = tuple(_list(values, "gpus", lambda index: _is_count(index, MAX_GPUS - 1)))
    values["notes"] = tuple(_list(values, "notes", lambda note: _is_text(note, MAX_SETTING_TEXT)))
    values["components"] = tuple(_component(item) for item in _list(values, "components"))
    values["applied"] = tuple(_setting(item) for item in _list(values, "applied"))
    values["tuning"] = check_tuning(values.get("tuning"))
    values["devices"] = tuple(_device(item) for item in _list(values, "devices"))
    names = [component.name for component in values["components"]]
    if len(set(names)) < len(names):
        raise UsageError("energy record: a component is listed twice")
    return cls(**values, extra=extra)


def _check_schema(schema: Any) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise UsageError(f"energy record: schema {str(schema)[:40]!r} is not a version number")
    if schema > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"energy record: schema {str(schema)[:40]} is newer than {SCHEMA_VERSION}, the newest known here",
            todo="upgrade the controller and the login nodes first, then the compute nodes",
        )


def _split(data: Mapping[str, Any], cls: type[Any]) -> tuple[dict[str, Any], Extra]:
    """Split a JSON object into the fields of the data class `cls` and all other keys."""
    fields = _field_names(cls)
    values = {key: value for key, value in data.items() if key in fields}
    if len(values) == len(data):
        return values, ()
    return values, tuple((key, value) for key, value in data.items() if key not in fields)


def _field_names(cls: type[Any]) -> frozenset[str]:
    names = _FIELD_NAMES.get(cls)
    if names is None:
        names = _FIELD_NAMES[cls] = frozenset(f.name for f in dataclasses.fields(cls)) - {"extra"}
    return names


_FIELD_NAMES: Final[dict[type[Any], frozenset[str]]] = {}
"""Names of the fields of data classes, computed once per class."""


def _to_object(item: EnergyRecord | ComponentEnergy | AppliedSetting | JobDevice) -> dict[str, Any]:
    """Return a record, or a part of a record, as a dict with all fields and unknown keys.

    `dataclasses.asdict` would copy every value. Copying takes most of the time of a conversion.
    """
    data = {name: getattr(item, name) for name in item.__slots__ if name != "extra"}
    return {**data, **dict(item.extra)}


def _check_extra(extra: Extra) -> None:
    if len(extra) > MAX_EXTRA_KEYS:
        raise UsageError(f"energy record: more than {MAX_EXTRA_KEYS} unknown keys")
    for key, value in extra:
        if len(key) > _MAX_NAME or not is_plain_json(value, MAX_EXTRA_DEPTH):
            raise UsageError(f"energy record: bad value for unknown key {key[:60]!r}")


def is_plain_json(value: Any, depth: int) -> bool:
    """Return whether a value of a newer release can be stored as JSON that every reader can parse.

    Args:
        value: value of a key that this release does not know.
        depth: maximum nesting depth of lists and objects.
    """
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(is_plain_json(item, depth - 1) for item in items)
    return value is None or isinstance(value, str | bool) or is_number(value)


def _require(condition: bool, key: str, values: dict[str, Any]) -> None:
    if not condition:
        raise UsageError(f"energy record: bad value for '{key}': {str(values.get(key))[:60]!r}")


def _is_count(value: Any, high: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= high


def _is_number(value: Any) -> bool:
    return is_number(value) and value >= 0


def _is_text(value: Any, max_length: int = _MAX_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= max_length


def is_name(value: Any, max_length: int) -> bool:
    """Return whether a value is text that a terminal can safely show in a table: no control characters.

    Args:
        value: any JSON value.
        max_length: maximum number of characters.
    """
    return _is_text(value, max_length) and value.isprintable()


def _requested(values: dict[str, Any]) -> dict[str, str]:
    requested = values.get("requested", {})
    good = isinstance(requested, dict) and len(requested) <= MAX_EXTRA_KEYS
    _require(good and all(_is_text(text) for item in requested.items() for text in item), "requested", values)
    return dict(requested)


def _list(values: dict[str, Any], key: str, check: Callable[[Any], bool] | None = None) -> list[Any]:
    items = values.get(key, [])
    _require(isinstance(items, (list, tuple)) and len(items) <= MAX_ITEMS, key, values)
    if check is not None:
        _require(all(check(item) for item in items), key, values)
    return list(items)


def _component(data: Any) -> ComponentEnergy:
    try:
        values, extra = _split(data, ComponentEnergy)
        component = ComponentEnergy(**{**values, "quality": Quality(data["quality"]), "extra": extra})
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise UsageError(f"energy record: bad component: {str(error)[:200]}") from None
    _check_extra(extra)
    joules = component.energy_joules
    if not (isinstance(component.name, str) and _COMPONENT.fullmatch(component.name)):
        raise UsageError(f"energy record: unknown component {str(component.name)[:40]!r}")
    if joules is not None and not _is_number(joules):
        raise UsageError(f"energy record: bad energy of {component.name}: {str(joules)[:40]!r}")
    if component.source is not None and not _is_text(component.source):
        raise UsageError(f"energy record: bad source of {component.name}")
    return component


def _device(data: Any) -> JobDevice:
    try:
        values, extra = _split(data, JobDevice)
        device = JobDevice(**values, extra=extra)
    except (AttributeError, TypeError) as error:
        raise UsageError(f"energy record: bad device: {str(error)[:200]}") from None
    _check_extra(extra)
    limits = (device.min_cap_watts, device.max_cap_watts)
    named = isinstance(device.name, str) and _DEVICE.fullmatch(device.name)
    if not (named and is_name(device.product, _MAX_NAME)):
        raise UsageError(f"energy record: bad device {str(device.name)[:40]!r}")
    if not all(watts is None or _is_number(watts) for watts in limits):
        raise UsageError(f"energy record: bad power limits of {device.name}")
    return device


def _setting(data: Any) -> AppliedSetting:
    try:
        values, extra = _split(data, AppliedSetting)
        setting = AppliedSetting(**values, extra=extra)
    except (AttributeError, TypeError) as error:
        raise UsageError(f"energy record: bad setting: {str(error)[:200]}") from None
    _check_extra(extra)
    texts = (setting.setting, setting.requested, setting.note)
    known = [text for text in (setting.original, setting.applied) if text is not None]
    if not (
        all(_is_text(text, MAX_SETTING_TEXT) for text in (*texts, *known))
        and isinstance(setting.restored, bool | None)
    ):
        raise UsageError(f"energy record: bad setting {str(setting.setting)[:60]!r}")
    return setting
