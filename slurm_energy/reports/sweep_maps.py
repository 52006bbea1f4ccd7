"""Section about a parameter sweep on the HTML page of `senergy simulate`.

It shows a table of all variants (combinations of the swept values), and maps of the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.simulator.campaigns.sweep_results import MAP_TOTALS, SweepMap

_STRONGEST_PERCENT = 70


@dataclass(frozen=True, slots=True)
class SweepSection:
    """Section of a report that shows the results of a sweep over values of a simulation scenario.

    A variant is one combination of the swept values. A total is a figure of a whole simulation, for example
    its energy.

    Attributes:
        table: cells of the table of all variants and policies, header first; empty if there is no sweep.
        axes: titles of the axes, which name the swept keys of the scenario.
        maps: one map for each policy and total; a map shows the total at all combinations of two swept keys.
    """

    table: Sequence[Sequence[str]]
    axes: Sequence[str]
    maps: Sequence[SweepMap]

    def context(self) -> dict[str, Any] | None:
        """Return the variables with which the template renders the section about the sweep.

        The result is None if there is no sweep.
        """
        if not self.table:
            return None
        return {
            "header": self.table[0],
            "rows": self.table[1:],
            "keys": sum(title.count(",") + 1 for title in self.axes) + 1,
            "axes": self.axes,
            "maps": [_map(one) for one in self.maps],
        }


def _map(one: SweepMap) -> dict[str, Any]:
    """Return the cells of a map (table of one result over two parameters) for an HTML page.

    A cell consists of a value as text and the strength of its colour in percent. The strength increases with
    the value.
    """
    known = [value for row in one.values for value in row if value is not None]
    low, high = min(known), max(known)
    rows = []
    for label, values in zip(one.rows, one.values, strict=True):
        cells = []
        for value in values:
            share = 0.0 if value is None or high == low else (value - low) / (high - low)
            cells.append(("-" if value is None else f"{value:.4g}", round(_STRONGEST_PERCENT * share)))
        rows.append((label, cells))
    return {"title": f"{one.policy}: {MAP_TOTALS[one.total]}", "columns": one.columns, "rows": rows}
