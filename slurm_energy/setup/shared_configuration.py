"""Configuration that all hosts of a site share.

`senergy setup` copies it from senergyctld to a new host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slurm_energy.config.loader import parse
from slurm_energy.config.schema import SECTIONS
from slurm_energy.config.schema_document import toml
from slurm_energy.config.section_digests import SHARED_SECTIONS
from slurm_energy.errors import EnergyError
from slurm_energy.protocol.controller_client import ControllerClient

_TIMEOUT_S: Final = 3.0
_TABLES: Final = ("node_types", "policies")
_LISTS: Final = ("edp",)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def request_shared(urls: Sequence[str], users: Sequence[str], munge_socket: Path | None) -> Mapping[str, Any]:
    """Request the shared sections of the configuration from senergyctld.

    munge authenticates both ends of the connection.

    Args:
        urls: addresses of senergyctld.
        users: users as which senergyctld may run.
        munge_socket: socket of munged; None means the default of the munge library.

    Raises:
        EnergyError: no controller answers, or its response is invalid.
    """
    client = ControllerClient(urls, munge_socket, _TIMEOUT_S, users, total_timeout_s=2 * _TIMEOUT_S)
    shared = _checked(client.get("/v1/policies").get("shared", {}))
    sections_text = "\n".join(_section_lines(shared) + shared_tables(shared))
    parse(sections_text)  # raises an error for values that this release does not accept
    return shared


def _checked(shared: Any) -> Mapping[str, Any]:
    """Return the shared sections (sections that are equal on all hosts) in a response of senergyctld.

    All other sections are left out: a response must not change them, because a host trusts its own
    energy.toml more than senergyctld.

    Raises:
        EnergyError: the response has another form, or contains a name that is no bare key of TOML.
    """
    sections = (
        {name: one for name, one in shared.items() if name in SHARED_SECTIONS} if _is_table(shared) else None
    )
    tables: list[Any] = [sections]
    for name, values in (sections or {}).items():
        if name in _LISTS:
            tables += values if isinstance(values, list) else [None]
        else:
            tables.append(values)
            tables += values.values() if name in _TABLES and isinstance(values, dict) else []
    if sections is None or not all(map(_is_table, tables)):
        raise EnergyError("senergyctld", "the response has no valid shared configuration")
    return sections


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) and _NAME.fullmatch(key) for key in value)


def shared_keys(shared: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Return the values of the configuration that all hosts of a site share, by section and key.

    Tables with names, such as `[policies.NAME]`, are left out. Section `cluster` is left out too, because
    its values follow from slurm.conf.
    """
    return {
        (section, name): value
        for section, values in shared.items()
        if section in SECTIONS and section != "cluster" and isinstance(values, dict)
        for name, value in values.items()
    }


def shared_tables(shared: Mapping[str, Any]) -> list[str]:
    """Return the tables of the shared configuration as lines for energy.toml.

    The shared configuration is equal on all hosts. Its tables are the policies, the node types, and the
    settings with which the policy `edp` starts jobs (`[[edp]]`).
    """
    lines: list[str] = []
    for kind in _TABLES:
        for name, values in shared.get(kind, {}).items():
            lines += [f"[{kind}.{name}]", *(f"{key} = {toml(value)}" for key, value in values.items()), ""]
    for kind in _LISTS:
        for values in shared.get(kind, []):
            lines += [f"[[{kind}]]", *(f"{key} = {toml(value)}" for key, value in values.items()), ""]
    return lines


def _section_lines(shared: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    keys = shared_keys(shared)
    for section in dict.fromkeys(section for section, _ in keys):
        lines.append(f"[{section}]")
        lines += [f"{name} = {toml(value)}" for (where, name), value in keys.items() if where == section]
    return lines
