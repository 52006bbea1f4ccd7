"""Construction of objects from stored or received data that a newer release may have written.

A release may add keys to an object without a new format version. Older releases ignore the added keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from slurm_energy.errors import UnavailableError

_T = TypeVar("_T")


class NewerStateError(UnavailableError):
    """Error: a newer release wrote a state file of the daemon in a format that this release cannot read."""


def build_from(cls: type[_T], data: Mapping[str, Any]) -> _T:
    """Return an instance of a class from stored data. Keys that are not parameters are ignored.

    Raises:
        TypeError: a required parameter is missing.
    """
    return cls(**known_fields(cls, data))


def known_fields(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return those items of stored data whose keys are parameters of the constructor of a class.

    Other keys, for example those of a newer release, are left out.
    """
    names = parameter_names(cls)
    return {name: value for name, value in data.items() if name in names}


def check_version(name: str, version: object, newest: int) -> None:
    """Check the format version of a file of the state directory.

    Args:
        name: path of the file, for messages.
        version: version in the file.
        newest: newest version that this release reads.

    Raises:
        NewerStateError: the version is newer than `newest`. The file must not be changed.
        ValueError: the value is not a version.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"version {str(version)[:40]}")
    if version > newest:
        raise NewerStateError(
            name,
            f"format version {version} is newer than {newest}, the newest that this senergyd reads",
            "start the senergyd that wrote it, or a newer one",
        )


def parameter_names(cls: type[Any]) -> frozenset[str]:
    """Return the names of the parameters that the constructor of a class has."""
    names = _PARAMETER_NAMES.get(cls)
    if names is None:
        names = _PARAMETER_NAMES[cls] = frozenset(inspect.signature(cls).parameters)
    return names


_PARAMETER_NAMES: Final[dict[type[Any], frozenset[str]]] = {}
"""Names of parameters, computed once per class."""
