"""Kinds of findings of the diagnosis of a job. The configuration may name these kinds."""

from __future__ import annotations

from enum import StrEnum


class FindingKind(StrEnum):
    """Kinds of findings of the diagnosis (causes of lost time or energy in a job).

    Each kind has a page in docs/findings/ with the value of the kind as its name.
    """

    GPU_UNDERUSED = "gpu-underused"
    SMALL_BATCH = "small-batch"
    HOST_TO_DEVICE_COPY = "host-to-device-copy"
    DATA_STALL_IO = "data-stall-io"
    DATA_STALL_CPU = "data-stall-cpu"
    DATA_STALL = "data-stall"
    CPU_CONTENTION = "cpu-contention"
    COMMUNICATION_BOUND = "communication-bound"
    LOAD_IMBALANCE = "load-imbalance"
    STRAGGLER = "straggler"
    MEMORY_PRESSURE = "memory-pressure"
    OUT_OF_MEMORY = "out-of-memory"
    CHECKPOINT_STALL = "checkpoint-stall"
    ITERATION_OUTLIERS = "iteration-outliers"
    THERMAL_THROTTLING = "thermal-throttling"
    POWER_THROTTLING = "power-throttling"
    WRONG_LIMIT = "wrong-limit"
    HANG = "hang"
    IDLE_TAIL = "idle-tail"
    IDLE_ALLOCATION = "idle-allocation"
    UNUSED_GPU = "unused-gpu"
    UNUSED_CPU = "unused-cpu"
    EARLY_FAILURE = "early-failure"
    LOST_RUN = "lost-run"
    UNFINISHED_WORK = "unfinished-work"
