"""Fast parser of the records in responses of senergyctld.

senergyctld validates each record before it stores it, and signs its responses. A second validation would take
most of the time of a report on many jobs. Records with keys of a newer release are parsed by `EnergyRecord`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.records import (
    SCHEMA_VERSION,
    AppliedSetting,
    ComponentEnergy,
    EnergyRecord,
    JobDevice,
    Quality,
)


def _keys(cls: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(cls)) - {"extra"}


_RECORD_KEYS: Final = _keys(EnergyRecord)
_COMPONENT_KEYS: Final = _keys(ComponentEnergy)
_SETTING_KEYS: Final = _keys(AppliedSetting)
_DEVICE_KEYS: Final = _keys(JobDevice)
_QUALITIES: Final = {quality.value: quality for quality in Quality}
_LISTS: Final = ("gpus", "notes")


def parse_stored_record(data: Mapping[str, Any], added_keys: Collection[str]) -> EnergyRecord:
    """Return the record in an element of a response.

    Args:
        data: element of the list of records in a response.
        added_keys: keys that senergyctld adds to the keys of the record.

    Raises:
        UsageError: this release does not understand the record.
    """
    content = {key: value for key, value in data.items() if key not in added_keys}
    try:
        record = _parse(content)
    except (AttributeError, KeyError, TypeError, ValueError):
        record = None
    return EnergyRecord.from_json(content) if record is None else record


def _parse(content: dict[str, Any]) -> EnergyRecord | None:
    """Return a stored record that has the schema version and the keys of this release.

    The result is None if the content has another schema version or other keys.
    """
    if content["schema"] != SCHEMA_VERSION:
        return None
    values = dict(content)
    del values["schema"]
    if not values.keys() <= _RECORD_KEYS:
        return None
    components, settings, devices = (content.get(key, ()) for key in ("components", "applied", "devices"))
    if not (
        all(item.keys() == _COMPONENT_KEYS for item in components)
        and all(item.keys() == _SETTING_KEYS for item in settings)
        and all(item.keys() == _DEVICE_KEYS for item in devices)
    ):
        return None
    values["components"] = tuple(
        ComponentEnergy(one["name"], one["energy_joules"], one["source"], _QUALITIES[one["quality"]])
        for one in components
    )
    values["applied"] = tuple(AppliedSetting(**one) for one in settings)
    values["devices"] = tuple(JobDevice(**one) for one in devices)
    for key in _LISTS:
        values[key] = tuple(values.get(key, ()))
    if not values["end"] >= values["start"]:
        raise UsageError("energy record: bad value for 'end'")
    return EnergyRecord(**values)
