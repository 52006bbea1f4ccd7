"""Conversion of TOML values to the types of configuration keys."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

from slurm_energy.config.addresses import ControllerUrls
from slurm_energy.config.database_location import DatabaseLocation, parse_database
from slurm_energy.quantities import is_number

_PLURALS = {
    Path: "absolute paths",
    str: "strings",
    float: "finite numbers",
    int: "whole numbers",
    dict[str, Any]: "tables",
}


def convert(raw: Any, hint: Any) -> Any:
    """Convert a TOML value to the type of a configuration key.

    Args:
        raw: value as parsed by tomllib.
        hint: type hint of the dataclass field.

    Raises:
        ValueError: the value has the wrong type. The message of the error describes the fault.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is ControllerUrls:
        return _urls(raw)
    if origin in (typing.Union, types.UnionType):
        return convert(raw, next(a for a in arguments if a is not type(None)))
    if origin is list:
        if not isinstance(raw, list):
            raise ValueError(f"must be a list of {_PLURALS[arguments[0]]}")
        return [_item(item, arguments[0], "list") for item in raw]
    if origin is dict:
        if not isinstance(raw, dict):
            raise ValueError(f"must be a table of {_PLURALS[arguments[1]]}")
        return {name: _item(item, arguments[1], "table") for name, item in raw.items()}
    if origin is tuple:
        if isinstance(raw, list) and len(raw) == len(arguments):
            return tuple(convert(item, a) for item, a in zip(raw, arguments, strict=True))
        raise ValueError(f"must be a list of {len(arguments)} numbers")
    return _scalar(raw, hint)


def _item(raw: Any, hint: Any, whole: str) -> Any:
    try:
        return _scalar(raw, hint)
    except ValueError:
        raise ValueError(f"must be a {whole} of {_PLURALS[hint]}") from None


def _urls(raw: Any) -> ControllerUrls:
    if isinstance(raw, str):
        return ControllerUrls([raw])
    if isinstance(raw, list) and all(isinstance(url, str) for url in raw):
        return ControllerUrls(raw)
    raise ValueError("must be a string or a list of strings")


def _scalar(raw: Any, hint: Any) -> Any:
    if hint is float and is_number(raw):
        return float(raw)
    if hint is DatabaseLocation and isinstance(raw, str):
        return parse_database(raw)
    if hint is Path and isinstance(raw, str) and raw.startswith("/") and raw.isprintable():
        return Path(raw)
    if (hint in (int, bool, str) and type(raw) is hint) or (hint == dict[str, Any] and type(raw) is dict):
        return raw
    names = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a string"}
    names[DatabaseLocation] = "an absolute path or a URL"
    raise ValueError(f"must be {names.get(hint, 'an absolute path')}")
