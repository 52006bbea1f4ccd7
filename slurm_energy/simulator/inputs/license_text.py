"""Licenses that jobs request, in Slurm's notation `matlab:2,ansys`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from slurm_energy.scheduling.queue import Ints

_LICENSE = re.compile(r"([A-Za-z_][^\s:=,;|]{0,127})(?:[:=]([0-9]{1,9}))?")
"""Name with an optional number, as in the option --licenses of sbatch."""


def parse_licenses(text: str) -> dict[str, int] | None:
    """Return the number of licenses by name. Return None if the text is malformed."""
    licenses: dict[str, int] = {}
    for part in text.split(",") if text else ():
        match = _LICENSE.fullmatch(part.strip())
        if match is None:
            return None
        licenses[match[1]] = licenses.get(match[1], 0) + int(match[2] or 1)
    return licenses


def license_columns(texts: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return the licenses of n jobs, shape (n, l), and the names of the l kinds of license.

    Args:
        texts: license requests of the jobs. `parse_licenses` must be able to read each of them.
    """
    requests = {text: parse_licenses(text) or {} for text in dict.fromkeys(texts)}
    names = tuple(dict.fromkeys(name for request in requests.values() for name in request))
    columns = np.zeros((len(texts), len(names)), np.int64)
    rows = {name: row for row, name in enumerate(names)}
    for job, text in enumerate(texts):
        for name, count in requests[text].items():
            columns[job, rows[name]] = count
    return columns, names
