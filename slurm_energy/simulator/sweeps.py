"""Sweeps: variants of a scenario, each with another value of one key."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from typing import Any

from slurm_energy.config.loader import TableReader
from slurm_energy.errors import ConfigError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.simulator.scenario import Scenario

_SECTIONS = ("workload", "schedule", "power")


def parse(text: str) -> tuple[str, tuple[Any, ...]]:
    """Parse `SECTION.KEY=VALUE,VALUE,...` and return the key and its values, which are in TOML syntax.

    Raises:
        UsageError: the text has another form.
    """
    name, equals, values = text.partition("=")
    try:
        listed = tomllib.loads(f"values = [{values}]")["values"]
    except (tomllib.TOMLDecodeError, RecursionError):
        listed = []
    if not equals or not listed:
        raise UsageError(f"--sweep {shown(text)}", "is not KEY=VALUE,...", "e.g. workload.hours=5,10")
    return name.strip(), tuple(listed)


def variants(scenario: Scenario) -> list[Scenario]:
    """Return one scenario per value of the scenario's sweep; without a sweep, the scenario alone.

    Raises:
        ConfigError: the key is unknown, or a value is not allowed.
    """
    name, values = scenario.sweep
    return [_variant(scenario, name, value) for value in values] if name else [scenario]


def _variant(scenario: Scenario, name: str, value: Any) -> Scenario:
    """Return a copy of the scenario in which one key has another value.

    Args:
        scenario: the scenario.
        name: key as `SECTION.KEY`; `model.KEY` changes it in every model.
        value: the new value.
    """
    section, _, inner = name.rpartition(".")
    label = f"{name} = {json.dumps(value)}"
    plain = dataclasses.replace(scenario, sweep=("", ()), label=label, text=f"{scenario.text}\n{label}")

    def changed(table: Any) -> Any:
        values = {spec.name: getattr(table, spec.name) for spec in dataclasses.fields(table)}
        reader = TableReader(scenario.path, "")
        return reader.section(type(table), section, {**values, inner: value})

    kind = section.removeprefix("cluster.")
    if section == "model" and scenario.models:
        return dataclasses.replace(plain, models=tuple(changed(model) for model in scenario.models))
    if section in _SECTIONS:
        new: Any = changed(getattr(scenario, section))
        return dataclasses.replace(plain, **{section: new})
    if section.startswith("cluster.") and kind in scenario.kinds:
        return dataclasses.replace(plain, kinds={**scenario.kinds, kind: changed(scenario.kinds[kind])})
    raise ConfigError(f"{scenario.path}: sweep", f"no such key: {shown(name)}", "SECTION.KEY of the scenario")
