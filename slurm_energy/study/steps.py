"""The steps of a study, their order and their dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class StudyStep:
    """A step of an energy study, with the steps whose results it uses.

    Attributes:
        name: name of the subcommand and name of the directory with the results.
        title: description of the step in a few words.
        requires: earlier steps whose current results the step needs.
        uses: earlier steps whose results the step uses if they exist.
        sections: sections of the objective on which the result depends, see `StudyObjective.digest`.
    """

    name: str
    title: str
    requires: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()


_DATA: Final = ("scope", "season", "prices")
STEPS: Final[dict[str, StudyStep]] = {
    step.name: step
    for step in (
        StudyStep(
            "baseline", "measure the present state", sections=(*_DATA, "statistics", "targets", "limits")
        ),
        StudyStep("characterise", "classify jobs, plan measurements", ("baseline",), sections=()),
        StudyStep("model", "build and check the digital twin", ("baseline",), ("characterise",), _DATA),
        StudyStep(
            "choose",
            "simulate alternatives and recommend a plan",
            ("baseline", "model"),
            ("characterise",),
            (*_DATA, "targets", "limits"),
        ),
        StudyStep("deploy", "change the configuration in stages", ("choose",)),
        StudyStep(
            "validate",
            "estimate the effect and give a verdict",
            ("baseline", "deploy"),
            ("model", "choose"),
            (*_DATA, "statistics", "targets", "limits"),
        ),
    )
}
"""Steps by name in their order. `senergy study init` comes before all of them."""
