"""Slurm's numbers of the node's GPUs, by which hooks name the GPUs of a job.

Only NVIDIA GPUs need the configuration of Slurm. Other GPUs are numbered as `GpuInfo.slurm_numbers` states.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.errors import UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.gpu_order import (
    GRES_CONF,
    DetectedGpu,
    GpuOrder,
    UnreadableError,
    detected_gpus,
    read_gpu_order,
)
from slurm_energy.slurm.hook_environment import JobContext

_READ_TIMEOUT_S: Final = 0.5
"""Maximum time to wait for the files, which may be on a network file system that hangs."""
_MAX_AGE_S: Final = 600.0
"""Time after which the files are read again even if unchanged, because files that they include may change."""
_SUBJECT: Final = "Slurm's numbers of the GPUs"
_FILES: Final = "slurm.conf and gres.conf"
_ASSUMED: Final = "they are assumed to be minor numbers"
_KEPT: Final = "those that were read before remain in force"

log = logging.getLogger(__name__)


class GpuNumbers:
    """Slurm's numbers of the GPUs of this node, read from slurm.conf and gres.conf.

    slurmd reads the files when it starts and when it is reconfigured. This class reads them when a job with
    GPUs begins, if they have changed, because on a configless node they appear only after senergyd has
    started. A separate thread reads them. While this thread hangs, or if the files cannot be read, the
    previous numbers remain in force, as in slurmd.

    Args:
        locate: function that returns the path of slurm.conf, or None if there is none. It is called for jobs
            whose hook does not state the path, or states a path that senergyd does not see.
    """

    def __init__(self, locate: Callable[[], Path | None] = conf_files.locate_slurm_conf) -> None:
        self._locate = locate
        self._order: GpuOrder | None = None
        self._node = ""  # node to which the order belongs
        self._source: tuple[object, ...] | None = None
        self._read_s = -_MAX_AGE_S
        self._thread: threading.Thread | None = None
        self._failures = RepeatedFailureLog(log)

    def applied_to(self, devices: NodeDevices, context: JobContext, node: str) -> NodeDevices:
        """Return the devices of the node with Slurm's numbers of its GPUs.

        The result is `devices` itself if the job has no GPUs of its own or the numbers are unknown.

        Args:
            devices: the node's hardware.
            context: the job as the hook describes it.
            node: Slurm's name of this node.
        """
        gpus = detected_gpus(devices.hardware.gpus) if context.gpus else ()
        named_conf = Path(context.slurm_conf) if context.slurm_conf else None
        order = self._current_order(node, gpus, named_conf) if gpus else None
        if order is None:
            return devices
        numbered = tuple(_numbered(gpu, order) for gpu in devices.hardware.gpus)
        return dataclasses.replace(devices, hardware=dataclasses.replace(devices.hardware, gpus=numbered))

    def _current_order(
        self, node: str, gpus: tuple[DetectedGpu, ...], named_conf: Path | None
    ) -> GpuOrder | None:
        hangs = self._thread is not None and self._thread.is_alive()
        if not hangs:
            arguments = node, gpus, named_conf
            self._thread = threading.Thread(target=self._read, args=arguments, name="gpus", daemon=True)
            self._thread.start()
            self._thread.join(_READ_TIMEOUT_S)
            hangs = self._thread.is_alive()
        if hangs:
            self._failures.report(_FILES, f"cannot be read in {_READ_TIMEOUT_S:g} s; {_SUBJECT} may be wrong")
        else:
            self._failures.clear(_FILES, "can be read again")
        return self._order if self._node == node else None

    def _read(self, node: str, gpus: tuple[DetectedGpu, ...], named_conf: Path | None) -> None:
        if node != self._node:
            self._node, self._order, self._source = node, None, None
        try:
            conf = named_conf if _status(named_conf) else self._locate()
            source = (gpus, conf, _status(conf), _status(conf and conf.with_name(GRES_CONF)))
            if source == self._source and time.monotonic() - self._read_s < _MAX_AGE_S:
                return
            order = read_gpu_order(conf, node, gpus)
        except (OSError, UnreadableError) as error:  # OSError: senergyd may not search a directory
            self._source = None  # the next job tries again
            self._failures.report(_SUBJECT, f"{error}; {_KEPT if self._order else _ASSUMED}")
            return
        except UnavailableError as error:
            self._order = None
            self._failures.report(_SUBJECT, f"{error}; {_ASSUMED}")
        else:
            self._failures.clear(_SUBJECT, "known")
            if order != self._order:
                log.info("%s follow %s", _SUBJECT, order)
            self._order = order
        self._source, self._read_s = source, time.monotonic()


def _numbered(gpu: GpuInfo, order: GpuOrder) -> GpuInfo:
    if gpu.interface != "nvml":
        return gpu
    return dataclasses.replace(gpu, known_slurm_numbers=order.numbers(f"nvidia{gpu.minor}"))


def _status(path: Path | None) -> tuple[int, ...] | None:
    """Return the part of a file's status that changes with its content; None if there is no such file."""
    try:
        status = path.stat() if path else None
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None
    return None if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
