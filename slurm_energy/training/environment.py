"""Settings of a training program, read from environment variables.

The presets of `senergy sweep` set these variables. The module imports PyTorch only when a function needs it
for the first time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.quantities import shown

_PRECISIONS: Final = {"fp32": None, "fp64": None, "bf16": "bfloat16", "fp16": "float16"}
"""Type of the automatic casts by value of PRECISION; None: no casts."""
_BACKENDS: Final = {"openmp": "OpenMP", "native": "native thread pool"}
"""Name in `torch.__config__.parallel_info()` by value of TORCH_BACKEND."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of a training program from its environment variables.

    Attributes:
        batch_size: images per batch of one process; None if the environment sets no batch size.
        processes: number of processes that share the batch.
        precision: `fp32`, `fp64`, `bf16` or `fp16`.
        inter_op_threads: threads of PyTorch's inter-op pool; None means PyTorch's default.
        backend: `openmp` or `native`, the backend of PyTorch's intra-op pool; None accepts any backend.
    """

    batch_size: int | None = None
    processes: int = 1
    precision: str = "fp32"
    inter_op_threads: int | None = None
    backend: str | None = None

    def autocast(self, device_type: str = "cpu") -> AbstractContextManager[Any]:
        """Return the context manager in which the forward pass runs in the chosen precision.

        Args:
            device_type: `cpu` or `cuda`.
        """
        name = _PRECISIONS[self.precision]
        if name is None:
            return contextlib.nullcontext()
        torch = _torch()
        context: AbstractContextManager[Any] = torch.autocast(device_type, getattr(torch, name))
        return context


def read_settings(environment: Mapping[str, str] = os.environ) -> TrainingSettings:
    """Return the settings in BATCH_SIZE, WORLD_SIZE, PRECISION, INTEROP_THREADS and TORCH_BACKEND.

    BATCH_SIZE counts the images of all processes. torchrun sets WORLD_SIZE.

    Raises:
        UsageError: a value is invalid, or the batch cannot be divided by the processes.
    """
    processes = _count(environment, "WORLD_SIZE") or 1
    batch = _count(environment, "BATCH_SIZE")
    if batch is not None and batch % processes:
        raise UsageError(f"BATCH_SIZE={batch}", f"is no multiple of the {processes} processes")
    return TrainingSettings(
        None if batch is None else batch // processes,
        processes,
        _choice(environment, "PRECISION", _PRECISIONS) or "fp32",
        _count(environment, "INTEROP_THREADS"),
        _choice(environment, "TORCH_BACKEND", _BACKENDS),
    )


def apply(environment: Mapping[str, str] = os.environ) -> TrainingSettings:
    """Apply the settings of the environment to PyTorch and return them.

    This function must be called before the first tensor operation.

    PyTorch itself reads the number of intra-op threads from OMP_NUM_THREADS. The backend is fixed when
    PyTorch is built. The function therefore only checks the backend.

    Raises:
        UsageError: a value is invalid, PyTorch has another backend, or its inter-op pool has started already.
        UnavailableError: PyTorch is not installed.
    """
    settings = read_settings(environment)
    torch = _torch()
    if settings.backend is not None and _BACKENDS[settings.backend] not in torch.__config__.parallel_info():
        raise UsageError(
            f"TORCH_BACKEND={settings.backend}",
            "this PyTorch is built with another backend",
            "start the program with a PyTorch that has it, or leave TORCH_BACKEND out",
        )
    if settings.inter_op_threads is not None:
        try:
            torch.set_num_interop_threads(settings.inter_op_threads)
        except RuntimeError:
            raise UsageError(
                "INTEROP_THREADS", "PyTorch has started its threads", "call apply() first"
            ) from None
    if settings.precision == "fp64":
        torch.set_default_dtype(torch.float64)
    return settings


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UnavailableError("PyTorch", "is not installed", "pip install torch") from None
    return torch


def _count(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0):
        raise UsageError(f"{name}={shown(text)}", "is not a positive whole number")
    return int(text)


def _choice(environment: Mapping[str, str], name: str, known: Mapping[str, Any]) -> str | None:
    text = environment.get(name)
    if text is not None and text not in known:
        raise UsageError(f"{name}={shown(text)}", "is unknown", f"one of {', '.join(known)}")
    return text
