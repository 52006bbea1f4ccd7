"""State of a cluster (resources, queue, price and carbon intensity) for another senergyctld.

One senergyctld sends the state to another. The state contains no names of users or jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number, shown

CLUSTER_STATE_PATH: Final = "/v1/cluster-state"
MAX_STATE_BYTES: Final = 1 << 20
MAX_JOBS: Final = 500
"""Maximum number of running jobs, and of pending jobs, in a state. Further jobs are combined."""
MAX_SLOTS: Final = 400
SIGNALS: Final = ("price_per_kwh", "carbon_g_per_kwh")
_MAX_NUMBER: Final = 1e15
_MAX_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class SignalValues:
    """Values of a signal, such as the energy price, by time slot; None stands for an unknown value."""

    mean: tuple[float | None, ...]
    deviation: tuple[float | None, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """State of a cluster.

    Attributes:
        cluster: Slurm's name of the cluster.
        taken_unix_s: time of the state in Unix seconds.
        cpus, gpus: numbers of all CPUs and GPUs of the nodes on which jobs may start.
        running: expected end in Unix seconds, CPUs and GPUs of each running job.
        pending: CPUs, GPUs and predicted run time of each pending job that may start. The jobs are in the
            order of their expected starts.
        pue: power usage effectiveness, which is the energy of the site divided by the energy of its
            computers; 1 if unknown.
        currency: currency of the price.
        start_unix_s, step_s: start of the first time slot of the signals, and length of each slot.
        signals: values by name of the signal, one of `SIGNALS`.
        problem: why the queue is unknown; empty if it is known.
    """

    cluster: str
    taken_unix_s: float
    cpus: int = 0
    gpus: int = 0
    running: tuple[tuple[float, float, float], ...] = ()
    pending: tuple[tuple[float, float, float], ...] = ()
    pue: float = 1.0
    currency: str = ""
    start_unix_s: float = 0.0
    step_s: float = 3600.0
    signals: Mapping[str, SignalValues] = field(default_factory=dict)
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the state as a dict that JSON can hold."""
        return {
            "cluster": self.cluster,
            "taken_unix_s": self.taken_unix_s,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "running": [list(job) for job in self.running],
            "pending": [list(job) for job in self.pending],
            "pue": self.pue,
            "currency": self.currency,
            "start_unix_s": self.start_unix_s,
            "step_s": self.step_s,
            "signals": {
                name: {"mean": list(one.mean), "deviation": list(one.deviation), "source": one.source}
                for name, one in self.signals.items()
            },
            "problem": self.problem,
        }

    @classmethod
    def from_json(cls, data: Any) -> ClusterState:
        """Return the state that the output of `to_json` describes. Unknown keys are ignored.

        Raises:
            UsageError: `data` is not an output of `to_json`, or is too large.
        """
        if not isinstance(data, dict):
            raise UsageError("state of a cluster", "is not a JSON object")
        return cls(
            cluster=_text(data, "cluster"),
            taken_unix_s=_number(data, "taken_unix_s"),
            cpus=int(_number(data, "cpus", low=0)),
            gpus=int(_number(data, "gpus", low=0)),
            running=_triples(data, "running"),
            pending=_triples(data, "pending"),
            pue=_number(data, "pue", low=1),
            currency=_text(data, "currency"),
            start_unix_s=_number(data, "start_unix_s"),
            step_s=_number(data, "step_s", low=1e-3),
            signals=_signals(data.get("signals")),
            problem=_text(data, "problem"),
        )


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise UsageError("state of a cluster", f"{name} is no text")
    return shown(value, _MAX_TEXT)


def _number(data: Mapping[str, Any], name: str, low: float = -_MAX_NUMBER) -> float:
    return _checked(data.get(name), name, low)


def _checked(value: Any, name: str, low: float = -_MAX_NUMBER) -> float:
    if not is_number(value) or not low <= value <= _MAX_NUMBER:  # False for NaN
        raise UsageError("state of a cluster", f"{name} is no number in its range")
    return float(value)


def _triples(data: Mapping[str, Any], name: str) -> tuple[tuple[float, float, float], ...]:
    def triple(value: Any) -> tuple[float, float, float]:
        if not isinstance(value, list) or len(value) != 3:
            raise UsageError("state of a cluster", f"{name} has a job without three numbers")
        first, second, third = (_checked(number, name, 0) for number in value)
        return first, second, third

    return _list(data.get(name), name, MAX_JOBS, triple)


def _signals(data: Any) -> dict[str, SignalValues]:
    signals = data if isinstance(data, dict) else {}
    values = {name: _signal(signals[name], name) for name in SIGNALS if name in signals}
    # All signals of a state have the same slots. Columns of different lengths would make placement fail.
    if len({len(one.mean) for one in values.values()}) > 1:
        raise UsageError("state of a cluster", "its signals have different numbers of slots")
    return values


def _signal(value: Any, name: str) -> SignalValues:
    if not isinstance(value, dict):
        raise UsageError("state of a cluster", f"{name} is no object")

    def entry(number: Any) -> float | None:
        return None if number is None else _checked(number, name)

    mean = _list(value.get("mean"), name, MAX_SLOTS, entry)
    deviation = _list(value.get("deviation"), name, MAX_SLOTS, entry)
    if len(mean) != len(deviation):
        raise UsageError("state of a cluster", f"{name} has columns of different lengths")
    return SignalValues(mean, deviation, _text(value, "source"))


def _list(value: Any, name: str, most: int, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise UsageError("state of a cluster", f"{name} is no list of at most {most}")
    return tuple(convert(one) for one in value)
