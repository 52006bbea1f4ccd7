"""Sweeps of a simulation: scenarios that differ only in the values of some keys.

The swept keys (axes) have several values each. The module makes one scenario for each combination of these
values.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, Final

from slurm_energy.config.loader import TableReader
from slurm_energy.errors import ConfigError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns.sweep_axes import SweepAxis, axis_of_option
from slurm_energy.simulator.constraints.constraint_schema import TABLES, ConstraintTables, read_tables
from slurm_energy.simulator.scenario import Scenario

MAX_RUNS: Final = 10_000
"""Default of the maximum number of simulations of a campaign."""


def parse(texts: Sequence[str]) -> tuple[SweepAxis, ...]:
    """Return the parameters of a sweep, with their values, from options `SECTION.KEY=VALUE,...`.

    Raises:
        UsageError: a text is malformed, or a key occurs twice.
    """
    axes = []
    for text in texts:
        try:
            axes.append(axis_of_option(text))
        except ValueError as error:
            raise UsageError(
                f"--sweep {shown(text)}", f"is not KEY=VALUE,...: {error}", "e.g. workload.load=0.5:1.0:0.1"
            ) from None
    keys = [key for axis in axes for key in axis.keys]
    if len(set(keys)) < len(keys):
        raise UsageError("--sweep", "a key occurs twice", "write all its values into one --sweep")
    return tuple(axes)


def variants(scenario: Scenario, max_runs: int = MAX_RUNS) -> list[Scenario]:
    """Return one scenario for each combination of the swept values.

    An axis is a key, or several keys, with the values to sweep. Without axes, return the scenario alone.

    Args:
        scenario: the scenario with its axes.
        max_runs: maximum number of simulations, over all variants, policies and seeds.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
        UsageError: there are more simulations than `max_runs`.
    """
    count = math.prod(len(axis.points) for axis in scenario.sweep)
    runs = count * len(scenario.policy_names) * scenario.schedule.seeds
    if runs > max_runs:
        parts = [f"{len(axis.points)} of {axis.title}" for axis in scenario.sweep]
        parts += [f"{len(scenario.policy_names)} policies", f"{scenario.schedule.seeds} seeds"]
        raise UsageError(
            f"{runs} simulations ({' x '.join(parts)})", f"at most {max_runs}", f"fewer, or --max-runs {runs}"
        )
    keys = tuple(key for axis in scenario.sweep for key in axis.keys)
    grid = itertools.product(*(axis.points for axis in scenario.sweep))
    points = [tuple(itertools.chain.from_iterable(point)) for point in grid]
    return [with_values(scenario, dict(zip(keys, point, strict=True))) for point in points]


def with_values(scenario: Scenario, values: dict[str, Any]) -> Scenario:
    """Return a copy of a scenario with new values of the given keys. The copy's label states these values.

    Args:
        scenario: the scenario.
        values: new values by key. A key has the form `SECTION.KEY`; `model.KEY` changes this key of every
            model.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    if not values:
        return dataclasses.replace(scenario, sweep=())
    label = ", ".join(f"{name} = {json.dumps(value, default=str)}" for name, value in values.items())
    changed = dataclasses.replace(
        scenario, sweep=(), label=label, text=f"{scenario.text}\n{label}", point=tuple(values.items())
    )
    for name, value in values.items():
        changed = _with_value(changed, name, value)
    scenarios.check(changed, TableReader(scenario.path, ""))
    return changed


def _with_value(scenario: Scenario, name: str, value: Any) -> Scenario:
    section, _, inner = name.rpartition(".")

    def changed(table: Any) -> Any:
        values = {spec.name: getattr(table, spec.name) for spec in dataclasses.fields(table)}
        reader = TableReader(scenario.path, "")
        return reader.section(type(table), section, {**values, inner: value})

    kind, site = section.removeprefix("cluster."), section.removeprefix("site.")
    if section == "model" and scenario.models:
        return dataclasses.replace(scenario, models=tuple(changed(model) for model in scenario.models))
    if section.startswith("cluster.") and kind in scenario.kinds:
        return dataclasses.replace(scenario, kinds={**scenario.kinds, kind: changed(scenario.kinds[kind])})
    if section.startswith("site.") and site in scenario.sites:
        return dataclasses.replace(scenario, sites={**scenario.sites, site: changed(scenario.sites[site])})
    if section.partition(".")[0] in TABLES:
        return dataclasses.replace(scenario, constraints=_with_constraint(scenario, section, inner, value))
    table = getattr(scenario, section, None) if section.isidentifier() else None
    if dataclasses.is_dataclass(table):
        new: Any = changed(table)
        return dataclasses.replace(scenario, **{section: new})
    raise ConfigError(f"{scenario.path}: sweep", f"no such key: {shown(name)}", "SECTION.KEY of the scenario")


def _with_constraint(scenario: Scenario, section: str, inner: str, value: Any) -> ConstraintTables:
    """Return the tables of constraints of a scenario, with a new value for one of their keys."""
    tables = dataclasses.asdict(scenario.constraints)
    table, _, name = section.partition(".")
    known = tables[table] if table == "licenses" else tables[table].get(name)
    if known is None or inner not in known:
        raise ConfigError(
            f"{scenario.path}: sweep",
            f"no such key: {shown(f'{section}.{inner}')}",
            "SECTION.KEY of the scenario",
        )
    known[inner] = value
    return read_tables(tables, TableReader(scenario.path, ""))
