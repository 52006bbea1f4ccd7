"""A finished run of a job with the attributes that predictions need.

The module also defines the ways in which runs end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunEnding(StrEnum):
    """Way in which a run ended. The ending determines the meaning of the run's length.

    `COMPLETED` and `FAILED` runs ended by themselves. Other runs were ended externally, so their length is a
    lower bound of the time that the program needs.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def by_itself(self) -> bool:
        """Whether the program ended without intervention: it completed or failed."""
        return self in (RunEnding.COMPLETED, RunEnding.FAILED)

    @classmethod
    def of_state(cls, state: str) -> RunEnding:
        """Convert a final Slurm job state, e.g. `CANCELLED by 1001`, to an ending.

        The ending of an unknown state is `INTERRUPTED`.
        """
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
    """A finished run of a job. None means unknown.

    Attributes:
        end: end in Unix seconds.
        duration_s: seconds from start to end.
        ending: way in which the run ended.
        energy_joules: joules that the run used on all its nodes.
        gpu_joules: the part of `energy_joules` that the GPUs used.
        predicted_s: seconds that the queue engine predicted at the start of the run, before the misprediction
            factor of its user.
        user, account, partition, name, fingerprint, gpu_kind, policy, cap_watts, gpu_cap_watts, time_limit_s:
            as in `oracle.prediction.PredictionRequest`.
        nodes, cpus, gpus: resources that the job requested. The allocated resources are not used, because
            they are unknown before a job starts.
        held_cpus: CPUs that Slurm allocated to the run on all nodes. With `--exclusive` these are all CPUs of
            the nodes.
        memory_mib: memory that Slurm allocated to the run on all nodes, in MiB.
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
    held_cpus: int | None = None
    memory_mib: int | None = None
