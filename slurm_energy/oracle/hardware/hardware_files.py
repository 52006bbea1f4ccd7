"""Reader of hardware files (TOML), which describe kinds of device. Errors name file, line and key."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import tomllib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from slurm_energy.devices.product_names import gpu_product_words
from slurm_energy.errors import ConfigError, NotFoundError
from slurm_energy.oracle.hardware.device_kind import Hardware
from slurm_energy.quantities import shown

_DIRECTORY = Path(__file__).resolve().parent / "kinds"
_TEXTS = ("name", "description", "kind")
_NOT_FIGURES = (*_TEXTS, "aliases", "figure_sources")
_BELOW = (("min_cap_watts", "max_cap_watts"), ("min_clock_mhz", "max_clock_mhz"))


def hardware_names() -> dict[str, str]:
    """Map every name and every alias of a kind of device to the name of the kind.

    The kinds that slurm-energy contains and the kinds that the site has added are included.
    """
    return _shipped_names() | {name: kind.name for name, kind in _Site.kinds.items()}


@functools.cache
def _shipped_names() -> dict[str, str]:
    """Return the names and aliases of the kinds of hardware that are shipped with slurm-energy.

    Each name is mapped to the name of its file without suffix.
    """
    names: dict[str, str] = {}
    for path in sorted(_DIRECTORY.glob("*.toml")):
        hardware = load_hardware(path)
        names |= dict.fromkeys((hardware.name, *hardware.aliases), path.stem)
    return names


class _Site:
    """Registry of the kinds of device that a site has defined.

    `kinds` maps each name and alias in lower case to the kind of device. A change replaces the whole
    dictionary, because other threads read the dictionary.
    """

    kinds: ClassVar[dict[str, Hardware]] = {}


def use_site_hardware(kinds: Iterable[Hardware]) -> None:
    """Register a site's kinds of device for `find_hardware`.

    The site's kinds take precedence over the shipped kinds.

    Kinds that an earlier call registered are removed.
    """
    _Site.kinds = {name.lower(): kind for kind in kinds for name in (kind.name, *kind.aliases)}


def find_hardware(name_or_path: str) -> Hardware:
    """Return the kind of device with a name or alias, or the kind that a `.toml` file describes.

    Raises:
        NotFoundError: no kind of device has this name. The message lists similar names.
        ConfigError: the file is invalid.
    """
    own = _Site.kinds
    if own and not name_or_path.endswith(".toml"):
        requested = name_or_path.lower()
        kind = own.get(requested) or own.get(_by_words(requested, dict.fromkeys(own, "")))
        if kind is not None:
            return kind
    return _find_shipped(name_or_path)


@functools.cache
def _find_shipped(name_or_path: str) -> Hardware:
    """Return a kind of hardware by its name or alias, or from a `.toml` file.

    Names and aliases are those of the hardware files that slurm-energy contains.

    Raises:
        NotFoundError, ConfigError: as `find_hardware`.
    """
    if name_or_path.endswith(".toml"):
        return load_hardware(Path(name_or_path))
    names = _shipped_names()
    requested = name_or_path.lower()
    if requested not in names:
        requested = _by_words(requested, names)
    if requested not in names:
        near = difflib.get_close_matches(requested, hardware_names(), n=3, cutoff=0.4)
        offers = ", ".join(near) if near else ", ".join(sorted(set(hardware_names().values())))
        raise NotFoundError(
            f"hardware '{shown(name_or_path)}'", "no such kind", f"near names: {offers}; or a .toml file"
        )
    return load_hardware(_DIRECTORY / f"{names[requested]}.toml")


def _by_words(requested: str, names: dict[str, str]) -> str:
    """Return the name of a kind of hardware that consists of the same words as `requested`.

    If no entry of `names` has the same words, return `requested`. Drivers, and Slurm with `AutoDetect`,
    write device names with various separators. `nvidia_a100-sxm4-80gb` is found as `a100-sxm4-80gb`. `NVIDIA
    H100 PCIe` is not found, because no shipped kind has these words.

    Args:
        requested: name to look up.
        names: known names and aliases, each mapped to the name of its kind.
    """
    words = gpu_product_words(requested)
    return next((name for name in names if words and gpu_product_words(name) == words), requested)


def load_hardware(path: Path) -> Hardware:
    """Read one hardware file.

    Raises:
        ConfigError: the file is unreadable or not TOML, a key is unknown or missing, or a value is impossible
            or without a source.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), f"not TOML: {error}") from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason, "name a readable hardware file") from None
    return _Reader(path, text).hardware(data)


class _Reader:
    """Parser and validator of one hardware file. It returns a `Hardware`."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._lines = path, text.splitlines()

    def hardware(self, data: dict[str, Any]) -> Hardware:
        known_names = {field.name for field in dataclasses.fields(Hardware)}
        self._refuse_unknown(data, {*_TEXTS, "aliases", "sources", "figures"}, "")
        figures, sources = (self._table(data, name) for name in ("figures", "sources"))
        self._refuse_unknown(figures, known_names - set(_NOT_FIGURES), "figures.")
        values = {name: self._figure(name, item, sources) for name, item in figures.items()}
        for name in self._required() - set(values):
            raise self._fault(f"figures.{name}", "is missing", "figures")
        for low, high in _BELOW:
            if values[low] > values[high]:
                raise self._fault(f"figures.{low}", f"is above {high}")
        texts = {name: self._text(name, data.get(name)) for name in _TEXTS}
        if texts["kind"] not in ("gpu", "cpu"):
            raise self._fault("kind", "is neither gpu nor cpu")
        aliases = data.get("aliases", [])
        if not (isinstance(aliases, list) and all(isinstance(alias, str) for alias in aliases)):
            raise self._fault("aliases", "is not a list of names")
        origin = {name: sources[item["source"]] for name, item in figures.items()}
        return Hardware(**texts, aliases=tuple(aliases), figure_sources=origin, **values)  # type: ignore[arg-type]

    @staticmethod
    def _required() -> set[str]:
        hints = typing.get_type_hints(Hardware)
        return {name for name, hint in hints.items() if hint is float}

    def _figure(self, name: str, item: Any, sources: dict[str, Any]) -> float:
        key = f"figures.{name}"
        if not isinstance(item, dict) or set(item) != {"value", "source"}:
            raise self._fault(key, "is not { value = NUMBER, source = NAME }")
        value, source = item["value"], item["source"]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-12 < value < 1e18:
            raise self._fault(key, f"{shown(repr(value))} is not a number above 0")
        if not isinstance(source, str) or source not in sources:
            raise self._fault(key, f"source {shown(repr(source))} is not among [sources]")
        return float(value)

    def _table(self, data: dict[str, Any], name: str) -> dict[str, Any]:
        table = data.get(name)
        if not isinstance(table, dict):
            raise self._fault(name, "is missing or not a table")
        return table

    def _text(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise self._fault(name, "is missing or not a string")
        return value

    def _refuse_unknown(self, table: dict[str, Any], known_names: set[str], prefix: str) -> None:
        for name in table:
            if name not in known_names:
                near = difflib.get_close_matches(name, known_names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known_names))}"
                raise self._fault(f"{prefix}{name}", "unknown key", todo=hint)

    def _fault(self, key: str, why: str, look_for: str | None = None, todo: str = "") -> ConfigError:
        """Return an error about a key.

        The error names the line that contains the key, or the table that lacks the key.

        Args:
            key: the faulty or missing key.
            why: what is wrong.
            look_for: text to find in the file instead of `key`; None means `key`.
            todo: advice for the user; an empty value means none.
        """
        word = re.escape(look_for or key.rpartition(".")[2])
        pattern = re.compile(rf"\s*\[?\s*\"?{word}\"?\s*[\]=.]")
        line = next((i for i, text in enumerate(self._lines, 1) if pattern.match(text)), 1)
        return ConfigError(f"{self._path}, line {line}: {shown(key, 80)}", why, todo)
