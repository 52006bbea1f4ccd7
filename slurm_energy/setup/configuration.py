"""Text of energy.toml with the values that `senergy setup` has detected."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.config.schema_document import example_file, toml
from slurm_energy.safe_text import escape_controls

CONTROLLER_PORT: Final = 6828
_HEADER: Final = re.compile(r"^\[(\w+)\]$")


@dataclass(frozen=True, slots=True)
class DetectedValues:
    """Values that `senergy setup` writes to energy.toml, and notes about them.

    Attributes:
        values: values to write, by section and key.
        hints: values that the site may want, by section and key; setup writes these values as comments.
        notes: lines about this host, for the head of the file.
        tables: lines of further TOML tables, for the end of the file.
    """

    values: Mapping[tuple[str, str], Any]
    hints: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    tables: Sequence[str] = ()


def controller_url(address: str) -> str:
    """Return the URL of senergyctld on a host. An IPv6 address is put in brackets."""
    try:
        is_ipv6 = ipaddress.ip_address(address).version == 6
    except ValueError:
        is_ipv6 = False
    return f"http://{f'[{address}]' if is_ipv6 else address}:{CONTROLLER_PORT}"


def configuration_text(detected: DetectedValues) -> str:
    """Return the text of energy.toml.

    The text contains every key with its meaning. Only the detected values are active.

    Args:
        detected: values that setup has detected.
    """
    lines = example_file().splitlines()
    out = [lines[0], "# Written by `senergy setup`.", lines[1]]
    out += [f"# {escape_controls(note)}".rstrip() for note in detected.notes]
    section = ""
    for line in lines[2:]:
        if header := _HEADER.match(line):
            section = header[1]
        elif line.startswith("#["):
            section = ""
        name = line.removeprefix("#").partition(" = ")[0]
        if section and line.startswith("#") and (section, name) in detected.values:
            line = f"{name} = {toml(detected.values[section, name])}"
        elif section and line.startswith("#") and (section, name) in detected.hints:
            line = f"#{name} = {toml(detected.hints[section, name])}"
        out.append(line)
    text = "\n".join(out).rstrip("\n") + "\n"
    return f"{text}\n{chr(10).join(detected.tables).rstrip()}\n" if detected.tables else text
