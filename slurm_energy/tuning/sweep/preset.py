"""Presets of `senergy sweep`: configurations for a kind of program.

The configurations depend on the cores of the node. A preset is a TOML file with these entries:

- `summary`: description of the preset, one line.
- `needs`: requirements on the job for the settings to take effect, one line.
- `[counts]`: choices of whole numbers by name. An entry is a number or an expression. The expression may use
  the names of the machine (`machine_cores`, `machine_threads_per_core`) and the choices that precede it.
- `[words]`: choices of words by name.
- `[settings]`: the factors that each configuration sets (`env.NAME`, `sbatch.OPTION`), as expressions. An
  expression may use the names of the machine and all choices. The value `none` sets nothing.
- `[[rules]]`: `require`, an expression that must be true, and `reason`, the reason why other combinations
  are left out.
- `[knobs]`: values of knobs, as in a file of factors.

The functions are pure. The module `expression` describes the expressions.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion_or_list
from slurm_energy.tuning.sweep.design import MAX_POINTS, Settings
from slurm_energy.tuning.sweep.expression import Value, evaluate
from slurm_energy.tuning.sweep.factors import KNOBS, Factor, make_factor, parse_factor

MAX_COMBINATIONS: Final = 50_000
_MAX_BYTES: Final = 1 << 16
_NAME = re.compile(r"[a-z][a-z_]{0,31}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}", re.ASCII)
_TABLES: Final = ("counts", "words", "settings", "knobs")


@dataclass(frozen=True, slots=True)
class SweepPreset:
    """A preset of a sweep: the configurations to try for one kind of program.

    A choice is a quantity that varies, such as a number of workers. An expression is a formula in which
    names of choices may occur. A factor is a setting or option that the sweep varies.

    Attributes:
        name: name of the preset, or path of its file.
        summary: one line for users.
        needs: requirements on the job so that the settings take effect.
        counts: for each choice of a whole number, the expressions of the values to try.
        words: for each choice of a word, the words to try.
        settings: for each factor, the expression that yields its value.
        rules: expressions that must be true, each with the reason why other combinations are left out.
        knobs: factors that set knobs of the hardware.
    """

    name: str
    summary: str
    needs: str
    counts: Mapping[str, tuple[str, ...]]
    words: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, str]
    rules: tuple[tuple[str, str], ...]
    knobs: tuple[Factor, ...]

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the quantities (choices) of this preset whose values a user can replace."""
        return (*self.counts, *self.words)

    def with_values(self, name: str, text: str) -> SweepPreset:
        """Return a copy of this sweep preset in which one choice has other values.

        A choice is a named list of values that the sweep tries.

        Args:
            name: name of the choice, with `-` or `_`.
            text: values separated by commas.

        Raises:
            UsageError: the preset has no choice of this name, or a value is invalid.
        """
        key, items = name.replace("-", "_"), text.split(",")
        if key in self.counts:
            return replace(self, counts={**self.counts, key: _texts(f"--vary {shown(name)}", items)})
        if key in self.words:
            return replace(self, words={**self.words, key: _words(f"--vary {shown(name)}", items)})
        todo = suggestion_or_list(key, self.choices)
        raise UsageError(f"'{shown(name)}'", f"preset {shown(self.name)} has no such choice", todo)


@dataclass(frozen=True, slots=True)
class PresetConfigurations:
    """The configurations of a sweep preset (a set of settings to measure) that a machine can run.

    Attributes:
        settings: settings of each configuration, without duplicates. All configurations set the same
            factors.
        refused: number of combinations that were left out, by reason.
    """

    settings: tuple[Settings, ...]
    refused: Mapping[str, int]


def parse_preset(content: bytes, name: str) -> SweepPreset:
    """Parse the TOML file of a preset.

    Args:
        content: content of the file.
        name: name of the preset, or path of the file, for errors.

    Raises:
        UsageError: the file is not valid TOML, or a key or value is invalid; the message names file and key.
    """
    if len(content) > _MAX_BYTES:
        raise UsageError(name, f"longer than {_MAX_BYTES} bytes")
    try:
        data = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(name, f"not valid TOML: {shown(str(error), 200)}") from None
    known = ("summary", "needs", "rules", *_TABLES)
    for key in data:
        if key not in known:
            raise UsageError(f"{name}: '{shown(key)}'", "is unknown", suggestion_or_list(key, known))
    tables = {key: data.get(key, {}) for key in _TABLES}
    for key, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{name}: {key}", "is not a table", f"write [{key}]")
    try:
        return SweepPreset(
            name,
            _line(data, "summary"),
            _line(data, "needs"),
            {_name(key): _texts(key, value) for key, value in tables["counts"].items()},
            {_name(key): _words(key, value) for key, value in tables["words"].items()},
            {_factor(key): _line(tables["settings"], key) for key in tables["settings"]},
            tuple((_line(rule, "require"), _line(rule, "reason")) for rule in _rules(data.get("rules", []))),
            tuple(_knob(key, value) for key, value in tables["knobs"].items()),
        )
    except UsageError as error:
        raise UsageError(f"{name}: {error.what}", error.why, error.todo) from None


def configurations(preset: SweepPreset, machine: Mapping[str, int]) -> PresetConfigurations:
    """Return the feasible configurations of a preset on a machine.

    The first configuration has the first value of each choice if this combination is feasible.

    Args:
        preset: parsed preset.
        machine: numbers of the machine by name: `machine_cores`, `machine_threads_per_core`.

    Raises:
        UsageError: an expression is invalid, there are too many combinations, or no combination is feasible.
    """
    count = math.prod(len(values) for values in (*preset.counts.values(), *preset.words.values()))
    if count > MAX_COMBINATIONS:
        raise UsageError(
            f"preset {shown(preset.name)}", f"{count} combinations", f"at most {MAX_COMBINATIONS}"
        )
    settings: dict[Settings, None] = {}
    refused: Counter[str] = Counter()
    for names in _combinations(preset, machine):
        reason = _refusal(preset, names)
        if reason is None:
            settings[_settings(preset, names)] = None
        else:
            refused[reason] += 1
    if not settings:
        why = "; ".join(f"{number} x {reason}" for reason, number in refused.items())
        raise UsageError(f"preset {shown(preset.name)}", f"no combination is feasible ({why})")
    if len(settings) > MAX_POINTS:
        raise UsageError(f"preset {shown(preset.name)}", f"{len(settings)} points", f"at most {MAX_POINTS}")
    return PresetConfigurations(tuple(settings), dict(refused))


def _combinations(preset: SweepPreset, machine: Mapping[str, int]) -> Iterator[dict[str, Value]]:
    """Yield all combinations of the values of the choices of a sweep preset.

    A combination also contains the properties of the machine, by name. If a choice has equal values, they
    count once.
    """

    def extend(names: dict[str, Value], remaining: Sequence[str]) -> Iterator[dict[str, Value]]:
        if not remaining:
            yield names
            return
        key = remaining[0]
        values: Iterable[Value] = preset.words.get(key, ())
        if key in preset.counts:
            values = [evaluate(text, names) for text in preset.counts[key]]
        for value in dict.fromkeys(values):
            if key in preset.counts and (isinstance(value, bool) or not isinstance(value, int)):
                raise UsageError(f"preset {shown(preset.name)}: {key}", f"'{shown(str(value))}' is no number")
            yield from extend({**names, key: value}, remaining[1:])

    yield from extend(dict(machine), preset.choices)


def _refusal(preset: SweepPreset, names: Mapping[str, Value]) -> str | None:
    """Return why a combination of settings of a preset is left out.

    None is returned if the machine can run the combination.
    """
    for name in preset.counts:
        value = names[name]
        if isinstance(value, int) and value < 1:
            return f"{name} is below 1"
    for condition, reason in preset.rules:
        if not evaluate(condition, names):
            return reason
    return None


def _settings(preset: SweepPreset, names: Mapping[str, Value]) -> Settings:
    pairs = []
    for name, text in preset.settings.items():
        value = evaluate(text, names)
        pairs.append((name, None if value is None else make_factor(name, [str(value)]).values[0]))
    return tuple(pairs)


def _line(table: Any, key: str) -> str:
    value = table.get(key) if isinstance(table, dict) else None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise UsageError(f"{shown(key)}", "is not a line of text")
    return value


def _rules(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError("rules", "is not a list", "write [[rules]]")
    return value


def _name(key: str) -> str:
    if not _NAME.fullmatch(key):
        raise UsageError(f"'{shown(key)}'", "is not the name of a choice", "write a-z and _")
    return key


def _factor(key: str) -> str:
    if not key.startswith(("env.", "sbatch.")):
        raise UsageError(
            f"settings: '{shown(key)}'", "is not a factor", 'write "env.NAME" or "sbatch.OPTION"'
        )
    make_factor(key, ["1"])
    return key


def _knob(key: str, value: Any) -> Factor:
    if key not in KNOBS:
        raise UsageError(f"knobs: '{shown(key)}'", "is unknown", suggestion_or_list(key, KNOBS))
    return parse_factor(key, value) if isinstance(value, str) else make_factor(key, _items(key, value))


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = tuple(str(item) for item in _items(name, value))
    if not all(texts):
        raise UsageError(f"{shown(name)}", "has an empty value")
    return texts


def _words(name: str, value: Any) -> tuple[str, ...]:
    words = _texts(name, value)
    for word in words:
        if not _WORD.fullmatch(word):
            raise UsageError(f"{shown(name)}: '{shown(word)}'", "is not a word")
    return words


def _items(name: str, value: Any) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    if not items or any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in items):
        raise UsageError(f"{shown(name)}", "is not a list of texts and numbers")
    return items
