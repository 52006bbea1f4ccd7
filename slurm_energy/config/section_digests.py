"""Configuration sections that must agree on all hosts of a cluster: their values and digests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Final

from slurm_energy.config.schema import Config

_DIGITS = 12
_PARTS: dict[str, tuple[str, ...]] = {
    "cluster": ("name",),
    "defaults": (),
    "bounds": (),
    "node_types": (),
    "tuning": (),
    "policies": (),
    "edp": (),
}
"""Sections that decide the meaning of a flag, with the keys that count; empty: all keys count."""
SHARED_SECTIONS: Final = frozenset(_PARTS)


def shared_values(config: Config) -> dict[str, Any]:
    """Return the configuration values that all hosts share and that differ from the defaults.

    The values are returned by section, for JSON.
    """
    values = {name: _section_values(config, name) for name in _PARTS}
    plain: dict[str, Any] = json.loads(
        json.dumps({name: one for name, one in values.items() if one}, default=str)
    )
    return plain


def section_digests(config: Config) -> dict[str, str]:
    """Return a digest (hash) of each shared section of the configuration, by name of the section.

    Shared sections must agree on all hosts of a cluster. A digest covers only the keys whose values differ
    from the defaults. Hosts with different releases therefore have the same digest as long as a key that
    only the newer release knows has its default. A section whose values are all defaults has no digest.
    """
    digests = {}
    for name in _PARTS:
        if values := _section_values(config, name):
            text = json.dumps(values, sort_keys=True, default=str)
            digests[name] = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return digests


def _section_values(config: Config, name: str) -> Any:
    section = config.file_bounds if name == "bounds" and config.file_bounds else getattr(config, name)
    return _changed_values(section, _PARTS[name])


def _changed_values(section: Any, keys: tuple[str, ...] = ()) -> Any:
    if isinstance(section, dict):
        return {name: _changed_values(value) for name, value in section.items()}
    if isinstance(section, (list, tuple)):
        return [_changed_values(value) for value in section]
    if not dataclasses.is_dataclass(section) or isinstance(section, type):
        return section
    default = type(section)()
    return {
        field.name: _changed_values(getattr(section, field.name))
        for field in dataclasses.fields(section)
        if (not keys or field.name in keys) and getattr(section, field.name) != getattr(default, field.name)
    }
