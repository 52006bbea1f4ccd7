"""Rules that decide which finished runs are similar to a job.

Runs with common attributes are grouped by keys. The keys range from specific to general.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from slurm_energy.oracle.history.cap_response import Caps, caps_of
from slurm_energy.oracle.history.observed_run import ObservedRun
from slurm_energy.oracle.prediction import PredictionRequest

Key = tuple[int, bool, bool, tuple[Any, ...]]
Job = PredictionRequest | ObservedRun
Row = tuple[Any, ...]
"""Attributes of a job in the order of `ATTRIBUTES`."""

ATTRIBUTES = (
    *("user", "account", "partition", "name", "fingerprint", "nodes", "cpus", "gpus", "gpu_kind"),
    *("policy", "cap_watts", "gpu_cap_watts", "time_limit_s"),
)
"""Attributes that determine similarity."""

row_of = attrgetter(*ATTRIBUTES)
_GPUS, _TIME_LIMIT = ATTRIBUTES.index("gpus"), ATTRIBUTES.index("time_limit_s")
_CAPS = itemgetter(*(ATTRIBUTES.index(name) for name in ("cap_watts", "gpu_cap_watts", "nodes", "gpus")))


@dataclass(frozen=True, slots=True)
class Level:
    """One level of similarity between a job and earlier runs.

    A level is specific (for example the same script) or general (for example only the same user).

    Attributes:
        text: description of the attributes that runs of this level have in common, shown to users.
        required: attributes that the runs share. The level applies only to jobs with known values of all
            these attributes.
        optional: further attributes that the runs share. Their values may be unknown.
        general_weight: weight of the forecast of the next more general level, in runs. For example, with
            the weight 1 this forecast counts as much as one run of this level.
        by_limit: whether this level groups runs of different programs. The length of a run is then
            divided by its time limit, if it has one, before runs are compared. The reason is that a
            user's ratio of length to time limit varies less than the length itself (Tsafrir, Etsion,
            Feitelson 2007).
    """

    text: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    general_weight: float = 0.5
    by_limit: bool = False


_SHAPE = ("nodes", "cpus", "gpus", "gpu_kind")
_SETTINGS = ("policy",)
"""Energy settings that are part of a key. Caps are not included, because runs under other caps are converted
(`cap_response`).
"""

LEVELS = (
    Level("same script, arguments, resources and policy", ("user", "fingerprint"), _SHAPE + _SETTINGS),
    Level("same script and arguments", ("user", "fingerprint")),
    Level("same user, name and resources", ("user", "name"), _SHAPE),
    Level("same user and name", ("user", "name")),
    Level("same user, resources and time limit", ("user", "time_limit_s"), _SHAPE, 1.0),
    Level("same user", ("user",), (), 5.0, by_limit=True),
    Level("same account", ("account",), (), 5.0, by_limit=True),
    Level("same partition", ("partition",), (), 5.0, by_limit=True),
)
"""Levels from the most specific to the most general. Jobs with GPUs and jobs without never share a key."""


USER_LEVEL = LEVELS.index(next(level for level in LEVELS if level.by_limit))
"""First level that groups different programs of the same user. More general levels group runs of several
users.
"""

_IS_OWN = tuple("user" in level.required for level in LEVELS)


def user_of(key: Key) -> str | None:
    """Return the login name of the user whose runs a similarity key covers.

    A similarity key identifies a group of similar runs in the history. The result is None if the key covers
    the runs of several users.
    """
    return str(key[3][0]) if _IS_OWN[key[0]] else None


def units(job: Job) -> float:
    """Return the number of units (GPUs or nodes) to which a job's power is proportional.

    The units of a job are its GPUs. The units of a job without GPUs are its nodes; an unknown number of
    nodes counts as 1. Cores are not used as units, because one busy core already causes most of a node's
    power.
    """
    return float(job.gpus or job.nodes or 1)


def caps_of_row(row: Row) -> Caps:
    """Return the power caps with which a job ran: watts per GPU, and watts per unit of the job.

    A unit is a GPU of the job, or a node if the job has no GPUs. The argument `row` contains the attributes
    of the job, from `row_of`.
    """
    return caps_of(*_CAPS(row))


def keys(row: Row) -> list[Key]:
    """Return the keys under which runs similar to a job are stored, the most general key first.

    There is one key per level of similarity that applies to the job. For example, a general level compares
    few attributes, and a specific level compares many. A key is (index of the level in `LEVELS`, whether the
    job has GPUs, whether the lengths of runs are shares of the time limit, values of the level's
    attributes).

    Args:
        row: attributes of the job, from `row_of`.
    """
    on_gpus, limited = bool(row[_GPUS]), row[_TIME_LIMIT] is not None
    return [
        (level, on_gpus, limited and by_limit, pick(row))
        for level, required_of, pick, by_limit in _PICKS
        if None not in required_of(row)
    ]


def _getter(names: Sequence[str]) -> Callable[[Row], tuple[Any, ...]]:
    """Return a function that extracts some attributes from a row of job attributes.

    The function always returns a tuple, even for a single name.
    """
    indices = [ATTRIBUTES.index(name) for name in names]
    return itemgetter(*indices) if len(indices) > 1 else itemgetter(slice(indices[0], indices[0] + 1))


_PICKS = tuple(
    (number, _getter(level.required), _getter(level.required + level.optional), level.by_limit)
    for number, level in reversed(list(enumerate(LEVELS)))
)
