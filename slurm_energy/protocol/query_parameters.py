"""Reading the parameters of a GET request: comma lists and switches. What they mean is said elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

_MOST_VALUES = 5_000


def refuse_unknown(query: Mapping[str, str], known: Collection[str]) -> None:
    """Refuse parameters that are not among those known.

    Raises:
        UsageError: naming one.
    """
    if unknown := sorted(set(query) - set(known)):
        raise UsageError(f"unknown parameter '{shown(unknown[0])}'", todo="known: " + ", ".join(known))


def words(query: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the words of a comma list; none where the parameter is missing.

    Raises:
        UsageError: too many.
    """
    found = tuple(word for word in query.get(key, "").split(",") if word)
    if len(found) > _MOST_VALUES:
        raise UsageError(f"{key}: more than {_MOST_VALUES} values")
    return found


def switch(query: Mapping[str, str], key: str) -> bool:
    """Return whether a parameter is 1; 0 or missing is False.

    Raises:
        UsageError: anything else.
    """
    text = query.get(key, "0")
    if text not in ("0", "1"):
        raise UsageError(f"{key}: '{shown(text)}' is neither 0 nor 1")
    return text == "1"
