"""Decision tree that selects energy measures (levers) for a study. Pure functions.

The tree starts from the objective and the data, and gives a reason at each branch.

Source: thesis, section 6.3.5 and Figure 6.8. There, the primary objective selects the scheduling policy:
Zeus for energy and delay, Hades for fairness, AuraChronos for deadlines, and Charon for a power limit. This
tree also considers the saving that the data suggest.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from slurm_energy.study.goals.objective import StudyObjective

IDLE_SHARE: Final = 0.10
"""Share of the energy in idle nodes from which powering nodes down is considered."""
WAIT_SHARE: Final = 0.10
"""Share of waiting in the completion time from which the order of the queue matters."""
TUNING_SHARE: Final = 0.01
"""Share of the energy that response curves must promise for tuning to be considered."""


@dataclass(frozen=True, slots=True)
class SiteFigures:
    """Measured figures of the present site, used by a decision tree for energy saving.

    From these figures, the decision tree chooses means to save energy. NaN means unknown.

    Attributes:
        idle_share: share of the cluster's energy that idle nodes draw.
        wait_share: mean wait divided by the mean completion time.
        tuning_potential: share of the jobs' energy that tuning saves at the best points of the response
            curves that keep the slowdown limit.
        curve_share: share of the jobs' energy in classes with a response curve.
        peak_watts: peak power of the cluster.
        has_varying_price: whether the price or the carbon intensity of electricity varies over time.
    """

    idle_share: float
    wait_share: float
    tuning_potential: float
    curve_share: float
    peak_watts: float
    has_varying_price: bool


@dataclass(frozen=True, slots=True)
class DecisionNode:
    """A question of the decision tree of a study, with its answer.

    Attributes:
        question: text of the question.
        answer: whether the answer is yes.
        reason: the figures that determine the answer.
        lever: means to save energy (lever) that the tree proposes if the answer is yes.
        choice: proposed setting of the lever; an empty value means that the lever is not proposed.
    """

    question: str
    answer: bool
    reason: str
    lever: str
    choice: str = ""

    def document(self) -> dict[str, Any]:
        """Return the node as a JSON object."""
        return asdict(self)


def decide(objective: StudyObjective, site: SiteFigures) -> list[DecisionNode]:
    """Return the decision tree of a study as a list of questions with answers, from the root on.

    Args:
        objective: objective of the study, with targets and limits.
        site: figures of the present site.
    """
    names = objective.kpi_names()
    return [
        _peak(names, site),
        _shifting(objective, site),
        _tuning(site),
        _power_saving(site),
        _priority(objective, site),
    ]


def _peak(names: list[str], site: SiteFigures) -> DecisionNode:
    answer = "peak_power_watts" in names and site.peak_watts == site.peak_watts
    if "peak_power_watts" not in names:
        reason = "no target or limit of the objective concerns peak power"
    elif not answer:
        reason = "the objective concerns peak power, but the power of the site is unknown"
    else:
        reason = f"the objective concerns peak power, which is {site.peak_watts:,.0f} W"
    choice = "a budget below the peak (thesis: Charon)" if answer else ""
    return DecisionNode("Does peak power matter?", answer, reason, "budget", choice)


def _shifting(objective: StudyObjective, site: SiteFigures) -> DecisionNode:
    main = objective.targets[0].kpi
    answer = main in ("cost", "carbon_kg") and site.has_varying_price
    if main not in ("cost", "carbon_kg"):
        reason = f"the main target is {main}, which does not depend on the hour"
    elif not answer:
        reason = "price and carbon intensity are constant in the objective: no hour is better than another"
    else:
        reason = f"the main target is {main}, and its factor varies over time"
    choice = ("cheapest" if main == "cost" else "cleanest") if answer else ""
    return DecisionNode("Does it matter when energy is used?", answer, reason, "deferral", choice)


def _tuning(site: SiteFigures) -> DecisionNode:
    answer = site.tuning_potential > TUNING_SHARE
    if not site.curve_share > 0:
        reason = "no class of jobs has a response curve: run senergy study characterise"
    else:
        reason = (
            f"response curves cover {100 * site.curve_share:.0f} % of the energy and promise "
            f"{100 * site.tuning_potential:.1f} % of it"
        )
    question = "Do jobs run at settings that need more energy than necessary?"
    return DecisionNode(question, answer, reason, "tuning", "energy or edp" if answer else "")


def _power_saving(site: SiteFigures) -> DecisionNode:
    answer = site.idle_share >= IDLE_SHARE
    reason = (
        f"idle nodes draw {100 * site.idle_share:.0f} % of the energy"
        if site.idle_share == site.idle_share
        else "the energy of idle nodes is unknown"
    )
    return DecisionNode(
        "Is much energy drawn by idle nodes?", answer, reason, "power_saving", "power down" if answer else ""
    )


def _priority(objective: StudyObjective, site: SiteFigures) -> DecisionNode:
    answer = site.wait_share >= WAIT_SHARE
    main = objective.targets[0].kpi
    policies = {
        "fairness": ("hades", "fairness is the objective (thesis: Hades)"),
        "worst_wait_s": ("hades", "the wait of the worst account is the objective (thesis: Hades)"),
        "peak_power_watts": ("charon", "peak power is the objective (thesis: Charon)"),
        "mean_jct_s": ("sjf", "completion time is the objective"),
        "jobs_per_hour": ("sjf", "throughput is the objective"),
    }
    choice, why = policies.get(main, ("zeus", "energy and delay are the objective (thesis: Zeus)"))
    if site.wait_share != site.wait_share:
        reason = "the waits of jobs are unknown"
    else:
        reason = f"jobs spend {100 * site.wait_share:.0f} % of their completion time waiting; {why}"
    question = "Do jobs wait so long that their order matters?"
    return DecisionNode(question, answer, reason, "priority", choice if answer else "")
