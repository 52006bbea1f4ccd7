"""Columns of `senergy prio`: properties of a pending job, and one column per term of its score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from slurm_energy.quantities import format_duration
from slurm_energy.reports.acct.fields import Field, Value, ValueFormat, always
from slurm_energy.reports.figure_format import figure

Job = Mapping[str, Any]
"""A pending job in the response to `GET /v1/priority`."""

LISTING: Final = "senergy prio --helpformat lists all"
_FACTOR_WIDTH: Final = 10
_MAX_PRIORITY: Final = 2**32 - 1


def state(job: Job) -> str:
    """Return `ready`, or the reason why a job's place in the queue has no effect, for example `held`."""
    words = [word for word in ("fixed", "held", "dependent") if job.get(word)]
    return ",".join(words) or "ready"


def shape(job: Job) -> str | None:
    """Return the GPU shape (type and number of GPUs) that the scheduling policy chose for a job.

    The result is None if the job does not offer several shapes.
    """
    shapes = job.get("shapes") or []
    return (
        next((offered["text"] for offered in shapes if offered.get("chosen")), None)
        if len(shapes) > 1
        else None
    )


def _key(name: str) -> Callable[[Job], Value]:
    return lambda job: job.get(name)


def _predicted(name: str) -> Callable[[Job], Value]:
    return lambda job: (job.get("predicted") or {}).get(name)


def _norm_priority(job: Job) -> str | None:
    """Return the priority of a job as a fraction of the maximum. sprio prints the same for `%y`."""
    return None if job.get("priority") is None else f"{job['priority'] / _MAX_PRIORITY:.10f}"


def _text_field(
    name: str, width: int, value: Callable[[Job], Value], doc: str, *, left: bool = False
) -> Field[Job]:
    return Field(name, width, "text", value, doc, left=left)


def _field(
    name: str, width: int, value_format: ValueFormat, value: Callable[[Job], Value], doc: str, unit: str = ""
) -> Field[Job]:
    return Field(name, width, value_format, value, doc, unit=unit)


def _prediction_field(
    name: str, width: int, value_format: ValueFormat, value: Callable[[Job], Value], doc: str, unit: str = ""
) -> Field[Job]:
    """Return a column of the queue table for a predicted quantity.

    Every job should have a value in this column. The arguments have the same meaning as in `Field`.
    """
    return Field(name, width, value_format, value, doc, unit=unit, expected=always)


FIELDS: Final[tuple[Field[Job], ...]] = (
    _text_field("JOBID", 12, _key("display_id"), "job id, array task or component", left=True),
    _text_field("ACCOUNT", 10, _key("account"), "account"),
    _text_field("BASIS", 40, _predicted("basis"), "basis of the prediction", left=True),
    _field("DUE", 19, "time", _key("deadline"), "deadline"),
    _field("ELIGIBLE", 19, "time", _key("eligible"), "earliest start"),
    _prediction_field("ENERGY", 9, "scaled", _predicted("energy_joules"), "predicted energy, J", "J"),
    _field("LOWBOUND", 11, "duration", _predicted("lower_bound_s"), "lower bound of the predicted run time"),
    _field(
        "MISPRED",
        8,
        "figure",
        _predicted("misprediction_factor"),
        "factor on the predicted time: actual over predicted time of the user's jobs",
    ),
    _text_field("NAME", 12, _key("name"), "name of the job"),
    _field("NICE", 6, "number", _key("nice"), "nice value, which Slurm subtracts from the priority"),
    _text_field("PARTITION", 9, _key("partition"), "partition"),
    _text_field("NORMPRIO", 12, _norm_priority, "priority in Slurm divided by the maximum priority"),
    _field("PLACE", 6, "number", _key("place"), "place in the order, 1 starts first; empty: not ranked"),
    _prediction_field(
        "PREDEDP", 11, "scaled", _predicted("edp_js"), "predicted energy-delay product, J*s", "J*s"
    ),
    _prediction_field("PREDTIME", 11, "duration", _predicted("time_s"), "predicted run time"),
    _field("PRIORITY", 10, "number", _key("priority"), "current priority in Slurm"),
    _text_field("QOS", 9, _key("qos"), "quality of service"),
    _text_field("REASON", 16, _key("reason"), "reason for waiting as Slurm states it"),
    _field("RUNS", 5, "number", _predicted("runs"), "number of runs on which the prediction is based"),
    _field("SCORE", 10, "figure", _key("score"), "score of the policy; lower scores start earlier"),
    _text_field("SHAPE", 16, shape, "shape chosen from those that the job offers"),
    _field("SITE", 10, "number", _key("site_factor"), "site factor that represents the place"),
    _text_field("SOURCE", 9, _predicted("source"), "source of the prediction: history, model or nameplate"),
    _field("SOURCETIME", 11, "duration", _predicted("source_time_s"), "run time before LOWBOUND and MISPRED"),
    _text_field("STATE", 9, state, "ready, held, dependent or fixed (priority set by an administrator)"),
    _field("SUBMITTED", 19, "time", _key("submit"), "time of submission"),
    _text_field(
        "TIER",
        6,
        _key("tier"),
        "aged, urgent, normal; after them warned and spent: over the warning or hold level of a quota",
    ),
    _text_field("USER", 8, _key("user"), "owner"),
    _field("WAITED", 11, "duration", _key("wait_s"), "time since submission"),
    _prediction_field("WATTS", 8, "number", _predicted("power_watts"), "predicted power, W"),
    _text_field("WHY", 60, _key("why"), "reason for the place", left=True),
)

_FIRST_COLUMNS: Final = ("JOBID", "PARTITION", "USER", "PLACE", "SITE", "SCORE")
_LAST_COLUMNS: Final = ("PREDTIME", "WATTS", "ENERGY", "SOURCE")
_LONG_FIRST_COLUMNS: Final = ("JOBID", "PARTITION", "USER", "ACCOUNT", "QOS", "STATE", "TIER", "PLACE")
_LONG_SCORE_COLUMNS: Final = ("PRIORITY", "SITE", "NICE", "WAITED", "SCORE")
_LONG_LAST_COLUMNS: Final = (
    "PREDTIME",
    "WATTS",
    "ENERGY",
    "PREDEDP",
    "SOURCE",
    "RUNS",
    "MISPRED",
    "SHAPE",
    "REASON",
)


def term_names(jobs: Iterable[Job]) -> list[str]:
    """Return the names of the terms of which the jobs' scores consist, in order of appearance."""
    return list(dict.fromkeys(term["name"] for job in jobs for term in job.get("terms") or ()))


def column_name(term: str) -> str:
    """Return the column name of a score term: the name of the term, unless another column has this name."""
    name = term.upper()
    return f"{name}TERM" if any(field.name == name for field in FIELDS) else name


def term_fields(jobs: Sequence[Job], *, norm: bool = False) -> list[Field[Job]]:
    """Return one column of the queue table for each term of the jobs' priority scores.

    Args:
        jobs: jobs to show.
        norm: whether to show the values of the terms before weighting. Otherwise the table shows, for each
            term with a weight, its contribution to the score.
    """
    return [_term_field(name, norm, _term_unit(name, norm, jobs)) for name in term_names(jobs)]


def _term_unit(name: str, norm: bool, jobs: Sequence[Job]) -> str:
    """Return the unit of the values of a score term in the queue table.

    The text is empty if the column shows contributions to the score, which have no unit.
    """
    terms = (term for job in jobs if (term := term_of(job, name)))
    units = {"" if term.get("weight") is not None and not norm else term.get("unit") or "" for term in terms}
    return units.pop().replace(" ", "*") if len(units) == 1 else ""


def _term_field(name: str, norm: bool, unit: str) -> Field[Job]:
    def value(job: Job) -> Value:
        term = term_of(job, name)
        plain = norm or term.get("weight") is None
        weighted: Value = term.get("value" if plain else "contribution")
        return weighted

    column = column_name(name)
    doc = f"term `{name}` of the score"
    return Field(column, max(_FACTOR_WIDTH, len(column)), "figure", value, doc, unit=unit)


def term_of(job: Job, name: str) -> Mapping[str, Any]:
    """Return the term `name` of a job's score as in the controller's response, or an empty dict."""
    return next((term for term in job.get("terms") or () if term["name"] == name), {})


def default_format(jobs: Sequence[Job], *, long: bool) -> str:
    """Return a comma-separated list of the default columns, or of more columns if `long` is True."""
    terms = [column_name(name) for name in term_names(jobs)]
    first_columns = (*_LONG_FIRST_COLUMNS, *_LONG_SCORE_COLUMNS) if long else _FIRST_COLUMNS
    return ",".join((*first_columns, *terms, *(_LONG_LAST_COLUMNS if long else _LAST_COLUMNS)))


def unit_text(value: float | None, unit: str) -> str:
    """Return the value of a term of a job's priority score as text with its unit.

    Seconds are written as a duration.
    """
    if value is None:
        return "-"
    return format_duration(value) if unit == "s" and value >= 0 else f"{figure(value)} {unit}".rstrip()
