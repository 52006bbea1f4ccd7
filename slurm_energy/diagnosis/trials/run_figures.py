"""Time, energy and progress of one run, as trials store and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Time, energy and progress of one run.

    Attributes:
        job: id of the job.
        state: Slurm's state, such as COMPLETED.
        elapsed_s: duration in seconds.
        energy_joules: energy on all nodes; None if unknown.
        samples, steps: samples and steps of all ranks; None if unknown.
        ranks: processes that reported steps.
        nodes: nodes with a record; 0 if unknown.
        hints: settings that every rank reported alike, by name, such as `num_workers`.
        tail_s: seconds without activity at the end; None if unknown.
        contended_s: seconds by which other work on the nodes delayed the run; None if unknown.
        contended_joules: energy that the run used in the time `contended_s`; None if unknown.
        energy_parts: one text per kind of node: the types of the components whose energy is in
            `energy_joules`, such as `cpu+gpu`. Energies that cover different types of components cannot be
            compared. Runs that an earlier release stored have no texts.
    """

    job: str
    state: str
    elapsed_s: float
    energy_joules: float | None = None
    samples: float | None = None
    steps: float | None = None
    ranks: int = 0
    nodes: int = 0
    hints: Mapping[str, float] = field(default_factory=dict)
    tail_s: float | None = None
    contended_s: float | None = None
    contended_joules: float | None = None
    energy_parts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"hints": dict(self.hints), "energy_parts": list(self.energy_parts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunFigures:
        """Return the figures in an object that `to_json` returned. Unknown keys are ignored."""
        values = {name: data[name] for name in cls.__slots__ if name in data}
        return cls(**values | {"energy_parts": tuple(data.get("energy_parts", ()))})
