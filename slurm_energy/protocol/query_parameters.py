"""Parsers of HTTP query parameters: comma-separated lists, and switches.

This module knows no parameter names. The caller defines the meaning of the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

_MAX_VALUES = 5_000


def refuse_unknown(query: Mapping[str, str], allowed: Collection[str]) -> None:
    """Raise an error if `query` has a parameter that is not in `allowed`.

    Raises:
        UsageError: a parameter is unknown. The message names the first unknown and all allowed parameters.
    """
    if unknown := sorted(set(query) - set(allowed)):
        raise UsageError(f"unknown parameter '{shown(unknown[0])}'", todo="known: " + ", ".join(allowed))


def words(query: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the words of the comma-separated list in parameter `key`; empty if the parameter is missing.

    Raises:
        UsageError: the list has more than 5,000 words.
    """
    values = tuple(word for word in query.get(key, "").split(",") if word)
    if len(values) > _MAX_VALUES:
        raise UsageError(f"{key}: more than {_MAX_VALUES} values")
    return values


def switch(query: Mapping[str, str], key: str) -> bool:
    """Return True if parameter `key` is 1, and False if it is 0 or missing.

    Raises:
        UsageError: the parameter has another value.
    """
    text = query.get(key, "0")
    if text not in ("0", "1"):
        raise UsageError(f"{key}: '{shown(text)}' is neither 0 nor 1")
    return text == "1"
