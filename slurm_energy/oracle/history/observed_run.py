"""One run of a job that is over, as far as predictions need it, and the kinds of its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunEnding(StrEnum):
    """How a run ended, and so what its length says.

    `COMPLETED` and `FAILED` ended by themselves. The others were ended from outside: they would have taken
    at least that long.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def by_itself(self) -> bool:
        """Whether the program came to an end of its own."""
        return self in (RunEnding.COMPLETED, RunEnding.FAILED)

    @classmethod
    def of_state(cls, state: str) -> RunEnding:
        """Read Slurm's word for a final state, e.g. `CANCELLED by 1001`; what is not known is interrupted."""
        return _ENDINGS.get(state.partition(" ")[0], cls.INTERRUPTED)


_ENDINGS = {
    "COMPLETED": RunEnding.COMPLETED,
    "FAILED": RunEnding.FAILED,
    "OUT_OF_MEMORY": RunEnding.FAILED,
    "TIMEOUT": RunEnding.TIMEOUT,
    "DEADLINE": RunEnding.TIMEOUT,
    "CANCELLED": RunEnding.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run of a job that is over. None: not known.

    Attributes:
        end: Unix seconds of its end.
        duration_s: seconds that it ran.
        ending: how it ended.
        energy_joules: of all its nodes.
        gpu_joules: part of `energy_joules` that the GPUs used.
        predicted_s: seconds that the queue engine predicted when the run began, before the misprediction
            factor of its user.
        user, account, partition, name, fingerprint, gpu_kind, policy, cap_watts, gpu_cap_watts, time_limit_s:
            as in `oracle.answer.Question`.
        nodes, cpus, gpus: what the job asked for, not what it was given: that is not known beforehand.
    """

    end: float
    duration_s: float
    ending: RunEnding = RunEnding.COMPLETED
    energy_joules: float | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    name: str | None = None
    fingerprint: str | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None
    policy: str | None = None
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    time_limit_s: float | None = None
    gpu_joules: float | None = None
    predicted_s: float | None = None
