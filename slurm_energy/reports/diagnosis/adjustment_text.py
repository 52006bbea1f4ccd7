"""Text about adjustments: values of a program that change for its next run.

The diagnosis of a job advises the new values. The module writes two texts: the proposals for a job,
and a table of trials (tests of new values in runs) with their predicted and measured gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from slurm_energy.adjustment import Adjustment
from slurm_energy.quantities import shown

_COLUMNS = (
    ("TRIAL", 5),
    ("JOB", 8),
    ("STATE", 9),
    ("PREDICTED TIME/ENERGY", 21),
    ("MEASURED TIME/ENERGY", 20),
    ("PER", 6),
    ("RUNS", 5),
    ("ADJUSTMENTS", 0),
)


def change_text(adjustments: Any) -> str:
    """Return the adjusted values in a response of the controller as text, such as `workers 2 -> 8`."""
    return ", ".join(Adjustment.from_json(item).described() for item in adjustments or ())


def proposal_lines(proposals: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines of text about proposals to adjust values of a program.

    The lines state the adjustments, the finding, the predicted time and energy, and the source of the
    prediction.
    """
    for proposal in proposals:
        ratios = _ratios(proposal.get("predicted_time_ratio"), proposal.get("predicted_energy_ratio"))
        yield f"  {change_text(proposal.get('adjustments'))}"
        yield f"    finding {shown(str(proposal.get('finding')))}; predicted time/energy {ratios}"
        yield f"    source: {shown(str(proposal.get('prediction_source')))}"


def trial_lines(trials: Sequence[Mapping[str, Any]], *, with_users: bool = False) -> Iterator[str]:
    """Yield the lines of a table of trials, oldest first, each with the reason for its outcome.

    A trial tests adjusted values (for example a number of loader processes) in the next runs of a program.

    Args:
        trials: trials as senergyctld returns them.
        with_users: whether to name the owners.
    """
    yield "  ".join(title.ljust(width) for title, width in _COLUMNS).rstrip()
    for trial in trials:
        decision = trial.get("decision") or {}
        measured = "-"
        if decision.get("measured_time_ratio") is not None:
            measured = _ratios(decision["measured_time_ratio"], decision.get("measured_energy_ratio"))
        values = (
            str(trial.get("trial")),
            shown(str(trial.get("job"))),
            shown(str(trial.get("state"))),
            _ratios(trial.get("predicted_time_ratio"), trial.get("predicted_energy_ratio")),
            measured,
            shown(str(decision.get("unit") or "-")),
            f"{len(trial.get('before') or ())}/{len(trial.get('after') or ())}",
            change_text(trial.get("adjustments")),
        )
        cells = zip(values, _COLUMNS, strict=True)
        yield "  ".join(value.ljust(width) for value, (_, width) in cells).rstrip()
        owner = f" by uid {trial.get('uid')}" if with_users else ""
        yield f"       {_date(trial.get('created_unix_s'))}, source {shown(str(trial.get('source')))}{owner}"
        reason = decision.get("reason")
        if trial.get("state") == "undone" and decision.get("verdict") != "undone":
            reason = "undone on request"  # of a user, whatever the runs had shown
        if reason:
            yield f"       {shown(str(reason))}"


def _ratios(time: Any, energy: Any) -> str:
    return f"{_change(time)} / {_change(energy)}"


def _change(ratio: Any) -> str:
    return f"{100 * (ratio - 1):+.1f} %" if isinstance(ratio, int | float) else "unknown"


def _date(unix_s: Any) -> str:
    is_known = isinstance(unix_s, int | float)
    return datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M") if is_known else "unknown date"
