"""Factors of a sweep: the quantities that vary between the runs, and their values.

A factor is an energy setting of the job, an environment variable or an sbatch option.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import parse_megahertz, parse_watts, shown

MAX_VALUES: Final = 1000
"""Maximum number of values of one factor."""
UNSET: Final = "none"
"""Text of the value at which a knob keeps its setting."""
_MAX_FILE_BYTES: Final = 1 << 20
_RANGE = re.compile(r"(?P<first>[^.:]+(?:\.\d+)?\w*)\.\.(?P<last>[^:]+):(?P<step>[^:]+)")
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_OPTION = re.compile(r"[a-z][a-z0-9-]{0,40}", re.ASCII)
_PROFILE = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

_KNOB_OPTIONS: Final = {
    "policy": "energy-policy",
    "gpu-cap": "energy-gpu-cap",
    "cap": "energy-cap",
    "cpu-freq": "energy-cpu-freq",
    "gpu-clock": "energy-gpu-clock",
    "power-profile": "energy-power-profile",
}
_PROGRAM_VARIABLES: Final = {
    "batch-size": "BATCH_SIZE",
    "threads": "OMP_NUM_THREADS",
    "precision": "PRECISION",
}
KNOBS: Final = tuple(_KNOB_OPTIONS)
"""Factors that set hardware. The other factors change the program or its resources."""
LIMITS: Final = tuple(name for name in KNOBS if name != "policy")
"""Factors that fix a setting of the hardware, and therefore contradict the policy `monitor`."""
NAMES: Final = (*KNOBS, *_PROGRAM_VARIABLES)
"""Factors with an option of their own in `senergy sweep`."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A quantity that a sweep varies.

    Attributes:
        name: one of NAMES, `env.NAME` for an environment variable, or `sbatch.OPTION` for an sbatch option.
        values: values in the order of the sweep, without duplicates. Watts and MHz are plain numbers. None
            means that the hardware setting (knob) keeps its present value.
    """

    name: str
    values: tuple[str | None, ...]

    @property
    def is_knob(self) -> bool:
        """Whether the factor of a sweep sets an energy option of sbatch (`--energy-...`).

        It may do so by its own name or by the form `sbatch.OPTION`.
        """
        return (option_of(self.name) or "").startswith("energy-")


def option_of(name: str) -> str | None:
    """Return the sbatch option that a factor sets, without leading dashes.

    The result is None if the factor sets an environment variable.
    """
    if name.startswith("sbatch."):
        return name.removeprefix("sbatch.")
    return _KNOB_OPTIONS.get(name)


def variable_of(name: str) -> str | None:
    """Return the environment variable that a factor of a sweep sets; None for an sbatch option.

    A factor is a quantity that the sweep varies.
    """
    if name.startswith("env."):
        return name.removeprefix("env.")
    return _PROGRAM_VARIABLES.get(name)


def parse_factor(name: str, text: str) -> Factor:
    """Parse the values of a factor from the command line.

    Args:
        name: name of the factor.
        text: values separated by commas, `100,150,200`, and ranges `FIRST..LAST:STEP`. LAST is part of the
            range if its distance from FIRST is a multiple of STEP. The value `none` means that the setting
            is left unchanged.

    Raises:
        UsageError: the factor is unknown, a value is invalid, or there are too many values.
    """
    return make_factor(name, text.split(","))


def parse_variable(text: str) -> Factor:
    """Parse `NAME=VALUE,VALUE,...`, an environment variable with its values.

    Raises:
        UsageError: the text has another form.
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise UsageError(f"--env {shown(text)}", "no value", "write NAME=VALUE,VALUE")
    return parse_factor(f"env.{name}", values)


def make_factor(name: str, items: Sequence[Any]) -> Factor:
    """Return a factor of a sweep: a setting or option, with the values that the sweep tries.

    Args:
        name: name of the factor.
        items: texts and numbers. A text may be a range.

    Raises:
        UsageError: the factor is unknown, a value is invalid, or there are too many values.
    """
    parse = _parser_of(name)
    values: dict[str | None, None] = {}
    for item in items:
        text = f"{item:.12g}" if isinstance(item, float) else str(item)
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise UsageError(f"{_shown_name(name)}: '{shown(text)}' is not a text or a number")
        for value in _expand(name, text, parse):
            values[value] = None
            if len(values) > MAX_VALUES:
                raise UsageError(
                    f"{_shown_name(name)}: more than {MAX_VALUES} values", todo="use a larger step"
                )
    if not values:
        raise UsageError(f"{_shown_name(name)}: no value", todo="write 100,150 or 100..400:50")
    return Factor(name, tuple(values))


def read_factors(content: bytes, path: str) -> list[Factor]:
    """Parse a TOML file that lists the factors of a sweep, that is, the quantities to vary.

    A key is a name in NAMES, for example a power limit. The tables `env` and `sbatch` hold environment
    variables and sbatch options. The value of a key states the values to try. It is a text as on the
    command line, a number, or a list of texts and numbers.

    Args:
        content: content of the file.
        path: path of the file, for errors.

    Raises:
        UsageError: the file is not valid TOML, or a key or value is invalid; the message names file and
            key.
    """
    if len(content) > _MAX_FILE_BYTES:
        raise UsageError(path, f"longer than {_MAX_FILE_BYTES} bytes")
    try:
        data = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(path, f"not valid TOML: {shown(str(error), 200)}") from None
    named: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            if key not in ("env", "sbatch"):
                raise UsageError(f"{path}: table '{shown(key)}'", "is unknown", "use [env] or [sbatch]")
            named += [(f"{key}.{name}", item) for name, item in value.items()]
        else:
            named.append((key, value))
    try:
        return [_from_toml(name, value) for name, value in named]
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", error.why, error.todo) from None


def numeric_value(value: str | None) -> float | None:
    """Return the value of a sweep's factor as a number; None if the value is not a number.

    A factor is a setting or an option that the sweep varies.
    """
    return float(value) if value is not None and _NUMBER.fullmatch(value) else None


def _from_toml(name: str, value: Any) -> Factor:
    if isinstance(value, str) and not name.startswith(("env.", "sbatch.")):
        return parse_factor(name, value)
    return make_factor(name, value if isinstance(value, list) else [value])


def _expand(name: str, text: str, parse: Callable[[str], str | None]) -> list[str | None]:
    """Return the values that one item of a factor contains.

    A factor is a setting or option that a sweep varies. The user lists the values of a factor as items. An
    item is a single value or a range. For a single value, the result is this value. For a range such as
    `100..400:50`, the result contains all values of the range: 100, 150, and so on up to 400.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        if ".." in text and name not in ("precision", "policy") and not name.startswith(("env.", "sbatch.")):
            raise UsageError(f"{_shown_name(name)}: '{shown(text)}' is not a range", todo="write 100..400:50")
        return [parse(text)]
    ends = [numeric_value(parse(match[key])) for key in ("first", "last", "step")]
    if None in ends:
        if name.startswith(("env.", "sbatch.")):
            return [parse(text)]
        raise UsageError(f"{_shown_name(name)}: '{shown(text)}' is not a range of numbers")
    first, last, step = (float(end or 0.0) for end in ends)
    if not step > 0:
        raise UsageError(f"{_shown_name(name)}: '{shown(text)}': the step is not above 0")
    count = math.floor(abs(last - first) / step + 1e-9) + 1
    if count > MAX_VALUES:
        raise UsageError(f"{_shown_name(name)}: more than {MAX_VALUES} values", todo="use a larger step")
    signed = math.copysign(step, last - first)
    return [f"{first + index * signed:.12g}" for index in range(count)]


def _parser_of(name: str) -> Callable[[str], str | None]:
    """Return the function that parses the values of a sweep's factor with a given name.

    The function checks a value and converts it to its normal form.
    """
    if name.startswith("env."):
        if not _VARIABLE.fullmatch(name[4:]):
            raise UsageError(f"environment variable '{shown(name[4:])}'", "is not a valid name")
        return lambda text: _printable(name, text)
    if name.startswith("sbatch."):
        if not _OPTION.fullmatch(name[7:]):
            raise UsageError(f"sbatch option '{shown(name[7:])}'", "is not a long option without dashes")
        return lambda text: _printable(name, text)
    parse = _PARSERS.get(name)
    if parse is None:
        raise UsageError(f"factor '{shown(name)}'", "is unknown", f"one of {', '.join(NAMES)}, env, sbatch")
    return parse


def _knob(parse: Callable[[str], str]) -> Callable[[str], str | None]:
    return lambda text: None if text == UNSET else parse(text)


def _watts(name: str) -> Callable[[str], str]:
    return lambda text: f"{parse_watts(text, f'--{name}'):.12g}"


def _megahertz(name: str) -> Callable[[str], str]:
    return lambda text: f"{parse_megahertz(text, f'--{name}'):.12g}"


def _word(name: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not _PROFILE.fullmatch(text):
            raise UsageError(f"--{name}: '{shown(text)}' is not a name")
        return text

    return parse


def _count(name: str) -> Callable[[str], str | None]:
    def parse(text: str) -> str:
        if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0):
            raise UsageError(f"--{name}: '{shown(text)}' is not a positive whole number")
        return str(int(text))

    return parse


def _printable(name: str, text: str) -> str:
    if not text.isprintable() or len(text) > 1024:
        raise UsageError(f"{_shown_name(name)}: '{shown(text)}' is not a printable text")
    return text


def _shown_name(name: str) -> str:
    return shown(name) if "." in name else f"--{shown(name)}"


_PARSERS: Mapping[str, Callable[[str], str | None]] = {
    "policy": _word("policy"),
    "gpu-cap": _knob(_watts("gpu-cap")),
    "cap": _knob(_watts("cap")),
    "cpu-freq": _knob(_megahertz("cpu-freq")),
    "gpu-clock": _knob(_megahertz("gpu-clock")),
    "power-profile": _knob(_word("power-profile")),
    "batch-size": _count("batch-size"),
    "threads": _count("threads"),
    "precision": _word("precision"),
}
