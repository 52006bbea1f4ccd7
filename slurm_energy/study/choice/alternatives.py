"""Alternatives of a study: combinations of measures (levers) that save energy. Plain data.

The levers are tuning to an objective, the order of the queue, a power budget, the deferral of jobs, and
powering idle nodes down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.policies.catalogue import OBJECTIVES

TODAY: Final = "today"
"""Name of the alternative that changes nothing."""


@dataclass(frozen=True, slots=True)
class StudyAlternative:
    """An alternative in an energy study: a combination of means to save energy.

    The defaults change nothing.

    Attributes:
        name: short name, unique in a study.
        tuning: objective of tuned jobs, `energy`, `edp` or `ed2p`; an empty value means that jobs are not
            tuned.
        slowdown_percent: slowdown limit of the objective `energy`; None means the configured limit.
        ranking: scheduling policy that orders the queue; an empty value means the present policy of the
            site.
        weights: weights of the scheduling policy.
        budget_watts: power budget of the cluster; None means no budget.
        deferral: deferral policy, `cheapest` or `cleanest`; an empty value means no deferral.
        powers_down: whether idle nodes are powered down.
    """

    name: str
    tuning: str = ""
    slowdown_percent: float | None = None
    ranking: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    budget_watts: float | None = None
    deferral: str = ""
    powers_down: bool = False

    @property
    def levers(self) -> tuple[str, ...]:
        """Names of the levers (energy-saving functions) that this alternative uses.

        Possible names are `tuning`, `priority`, `budget`, `deferral` and `power_saving`.
        """
        used = {
            "tuning": self.tuning,
            "priority": self.ranking,
            "budget": self.budget_watts is not None,
            "deferral": self.deferral,
            "power_saving": self.powers_down,
        }
        return tuple(name for name, value in used.items() if value)

    @property
    def title(self) -> str:
        """Description of the alternative (combination of energy-saving measures) for readers."""
        parts = []
        if self.tuning:
            limit = (
                f", at most {self.slowdown_percent:g} % slower" if self.slowdown_percent is not None else ""
            )
            parts.append(f"tune jobs to {self.tuning}{limit}")
        if self.ranking:
            weights = ", ".join(f"{name}={value:g}" for name, value in self.weights.items())
            parts.append(f"order the queue by {self.ranking}{f' ({weights})' if weights else ''}")
        if self.budget_watts is not None:
            parts.append(f"keep a power budget of {self.budget_watts:,.0f} W")
        if self.deferral:
            parts.append(f"defer jobs with slack to {self.deferral} hours")
        if self.powers_down:
            parts.append("power idle nodes down")
        return "; ".join(parts) or "change nothing"

    def document(self) -> dict[str, Any]:
        """Return the alternative (combination of energy-saving measures) as a JSON object."""
        return asdict(self) | {"title": self.title, "levers": list(self.levers)}

    def with_levers_of(self, other: StudyAlternative) -> StudyAlternative:
        """Return a combination of this alternative with another alternative.

        A lever is a means to save energy, such as tuning or a power budget. The two alternatives must use
        different levers.

        Raises:
            ValueError: both alternatives use the same lever.
        """
        if shared := set(self.levers) & set(other.levers):
            raise ValueError(f"both use {', '.join(sorted(shared))}")
        names = (
            "tuning",
            "slowdown_percent",
            "ranking",
            "weights",
            "budget_watts",
            "deferral",
            "powers_down",
        )
        taken = {name: getattr(other, name) for name in names if getattr(other, name)}
        return replace(self, name=f"{self.name}+{other.name}", **taken)


def alternative_of(document: Mapping[str, Any]) -> StudyAlternative:
    """Return the study alternative (combination of energy measures) that a JSON object describes.

    `StudyAlternative.document` makes such objects.

    Raises:
        TypeError, AttributeError: the object describes no alternative.
    """
    names = StudyAlternative.__dataclass_fields__
    alternative = StudyAlternative(**{name: value for name, value in document.items() if name in names})
    texts = (alternative.name, alternative.tuning, alternative.ranking, alternative.deferral)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("name or lever of an alternative is not a text")
    return alternative


def parse_alternative(text: str) -> StudyAlternative:
    """Parse an alternative (a set of energy measures for the cluster) from the command line.

    The form is `NAME:LEVER=VALUE,...`, such as `night:ranking=zeus,budget=20000`. A lever is one measure.
    The levers are `tuning=OBJECTIVE`, `slowdown=PERCENT`, `ranking=POLICY`, `weight.TERM=NUMBER`,
    `budget=WATTS`, `deferral=POLICY` and `off=yes`.

    Raises:
        UsageError: the text has another form.
    """
    name, colon, levers = text.partition(":")
    values: dict[str, Any] = {}
    weights: dict[str, float] = {}
    try:
        if not (colon and name.replace("-", "").replace("_", "").isalnum() and name != TODAY):
            raise ValueError("the name is letters, digits, - and _")
        for item in levers.split(","):
            lever, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                raise ValueError(f"'{item[:40]}' has no =")
            parsed = _lever(lever, value)
            weights |= parsed.pop("weights", {})
            values |= parsed
    except ValueError as error:
        todo = "such as gentle:tuning=energy,slowdown=3 or green:ranking=zeus,off=yes"
        raise UsageError(f"--alternative {text[:60]}", str(error), todo) from None
    return StudyAlternative(name, weights=weights, **values)


_LEVERS: Final[Mapping[str, str]] = {
    "tuning": f"one of {', '.join(OBJECTIVES)}",
    "slowdown": "a percentage from 0 to 100",
    "ranking": "the name of a scheduling policy",
    "weight.TERM": "a number",
    "budget": "a positive number of watts",
    "deferral": "cheapest or cleanest",
    "off": "yes",
}
"""Levers of `parse_alternative` with the values that they take."""


def _lever(lever: str, value: str) -> dict[str, Any]:
    number = _number(value)
    if lever == "tuning" and value in OBJECTIVES:
        return {"tuning": value}
    if lever == "slowdown" and 0 <= number <= 100:
        return {"slowdown_percent": number}
    if lever == "ranking" and value:
        return {"ranking": value}
    if lever == "budget" and 0 < number < math.inf:
        return {"budget_watts": number}
    if lever == "deferral" and value in ("cheapest", "cleanest"):
        return {"deferral": value}
    if lever == "off" and value == "yes":
        return {"powers_down": True}
    if lever.startswith("weight.") and math.isfinite(number):
        return {"weights": {lever.removeprefix("weight."): number}}
    kind = "weight.TERM" if lever.startswith("weight.") else lever
    if kind in _LEVERS:
        raise ValueError(f"{lever[:20]} is {_LEVERS[kind]}, not '{value[:20]}'")
    raise ValueError(f"there is no lever '{lever[:20]}', only {', '.join(_LEVERS)}")


def _number(text: str) -> float:
    """Return the number in a text; NaN if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
