"""Digests of the configuration sections that must agree on all hosts of a cluster."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

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
"""Sections that decide what a flag means, with the keys that count; empty: all keys."""


def section_digests(config: Config) -> dict[str, str]:
    """Return a digest of each shared section by name. Only values other than the defaults count.

    A section without such values has no digest, and a key that only a newer release knows does not change the
    digest while it has its default.
    """
    digests = {}
    for name, keys in _PARTS.items():
        section = config.file_bounds if name == "bounds" and config.file_bounds else getattr(config, name)
        values = _changed_values(section, keys)
        if values:
            text = json.dumps(values, sort_keys=True, default=str)
            digests[name] = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return digests


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
