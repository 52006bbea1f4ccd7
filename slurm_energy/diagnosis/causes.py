"""Order of the findings of a job by importance.

The module also determines which finding is a cause and which other findings it explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from slurm_energy.diagnosis.finding import FindingKind, JobFinding

_K = FindingKind
_UNDERUSE = (_K.GPU_UNDERUSED,)
_DATA = (*_UNDERUSE, _K.ITERATION_OUTLIERS)

CONSEQUENCES: Final[Mapping[FindingKind, tuple[FindingKind, ...]]] = {
    _K.OUT_OF_MEMORY: (_K.EARLY_FAILURE, _K.UNFINISHED_WORK, _K.MEMORY_PRESSURE, _K.IDLE_TAIL),
    _K.EARLY_FAILURE: (
        _K.IDLE_TAIL,
        _K.UNUSED_GPU,
        _K.UNUSED_CPU,
        _K.GPU_UNDERUSED,
        _K.IDLE_ALLOCATION,
        _K.LOST_RUN,
    ),
    _K.MEMORY_PRESSURE: (*_DATA, _K.DATA_STALL_IO, _K.DATA_STALL, _K.DATA_STALL_CPU),
    _K.CPU_CONTENTION: (*_DATA, _K.DATA_STALL_CPU, _K.DATA_STALL, _K.LOAD_IMBALANCE),
    _K.THERMAL_THROTTLING: (
        _K.STRAGGLER,
        _K.LOAD_IMBALANCE,
        _K.WRONG_LIMIT,
        _K.POWER_THROTTLING,
        _K.ITERATION_OUTLIERS,
        _K.COMMUNICATION_BOUND,
        *_UNDERUSE,
    ),
    _K.WRONG_LIMIT: (
        _K.STRAGGLER,
        _K.LOAD_IMBALANCE,
        _K.POWER_THROTTLING,
        _K.COMMUNICATION_BOUND,
        _K.SMALL_BATCH,
    ),
    _K.STRAGGLER: (_K.COMMUNICATION_BOUND, _K.LOAD_IMBALANCE, _K.SMALL_BATCH, *_UNDERUSE),
    _K.LOAD_IMBALANCE: (_K.COMMUNICATION_BOUND, _K.SMALL_BATCH, *_UNDERUSE),
    _K.CHECKPOINT_STALL: (_K.ITERATION_OUTLIERS, _K.DATA_STALL_IO, *_UNDERUSE),
    _K.DATA_STALL_IO: _DATA,
    _K.DATA_STALL_CPU: _DATA,
    _K.DATA_STALL: _DATA,
    _K.HOST_TO_DEVICE_COPY: (_K.DATA_STALL, _K.DATA_STALL_CPU, _K.SMALL_BATCH, *_UNDERUSE),
    _K.COMMUNICATION_BOUND: (_K.SMALL_BATCH, *_UNDERUSE),
    _K.SMALL_BATCH: _UNDERUSE,
    _K.UNUSED_GPU: (_K.GPU_UNDERUSED, _K.LOAD_IMBALANCE, _K.STRAGGLER, _K.IDLE_ALLOCATION, _K.IDLE_TAIL),
    _K.IDLE_ALLOCATION: (_K.IDLE_TAIL, _K.UNUSED_CPU, _K.LOAD_IMBALANCE, _K.STRAGGLER, *_UNDERUSE),
    _K.HANG: (
        _K.IDLE_TAIL,
        _K.IDLE_ALLOCATION,
        _K.COMMUNICATION_BOUND,
        _K.LOAD_IMBALANCE,
        _K.STRAGGLER,
        _K.SMALL_BATCH,
        *_UNDERUSE,
    ),
    _K.IDLE_TAIL: (_K.UNUSED_CPU, *_UNDERUSE),
}
"""Kinds of findings that a kind explains."""
MIN_EXPLAINED: Final = 0.25
"""Minimum lost time of a finding that explains another one, as a fraction of the other's lost time."""


def ordered(findings: Sequence[JobFinding]) -> tuple[JobFinding, ...]:
    """Return the causes among the findings, in descending order of lost energy.

    A cause is a finding that no other finding explains. Each returned cause lists the findings that it
    explains. Causes whose lost energy is unknown come last, in descending order of lost or affected time.
    """
    parents = [_parent(findings, index) for index in range(len(findings))]
    explained: dict[int, list[FindingKind]] = {}
    for index, parent in enumerate(parents):
        if parent is not None:
            explained.setdefault(_root(parents, parent), []).append(findings[index].kind)
    causes = [
        replace(finding, consequences=tuple(dict.fromkeys(explained.get(index, ()))))
        for index, finding in enumerate(findings)
        if parents[index] is None
    ]
    return tuple(sorted(causes, key=_rank, reverse=True))


def _parent(findings: Sequence[JobFinding], index: int) -> int | None:
    """Return the index of the finding that explains the finding at `index`.

    If several findings explain it, the most expensive one is returned. The result is None if the finding
    at `index` is itself a cause.
    """
    explaining = [n for n, cause in enumerate(findings) if n != index and _explains(cause, findings[index])]
    return max(explaining, key=lambda number: _rank(findings[number]), default=None)


def _root(parents: Sequence[int | None], index: int) -> int:
    """Return the index of the finding that is the original cause of a finding.

    A finding may be explained by another one, which may be explained by a third one. The function follows
    these explanations to the end. They form no cycle (`CONSEQUENCES`).
    """
    while (parent := parents[index]) is not None:
        index = parent
    return index


def _explains(cause: JobFinding, symptom: JobFinding) -> bool:
    if symptom.kind not in CONSEQUENCES.get(cause.kind, ()):
        return False
    if cause.seconds_lost is None or symptom.seconds_lost is None:
        return True
    return cause.seconds_lost >= MIN_EXPLAINED * symptom.seconds_lost


def _rank(finding: JobFinding) -> tuple[bool, float, float, float]:
    joules = finding.joules_lost
    return (
        joules is not None,
        joules or 0.0,
        finding.seconds_lost or 0.0,
        (finding.time_share or 0.0) * finding.confidence,
    )
