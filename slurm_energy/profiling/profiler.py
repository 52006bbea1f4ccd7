"""Interface of the profiler for programs: `with profile("phase"):` and `@profile("phase")`.

The energy of a section is the energy of the whole job on this node while the section ran, not only the energy
of the calling process. Outside Slurm, the energy of a section is that of the whole node. Exceptions of the
program pass through. A failure to measure never raises an error in the program. At the start and the end of a
section, only a request is sent. The program waits for the responses when it reads the energy.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.profiling.decoration import inside
from slurm_energy.profiling.energy_reader import AgentEnergyReader, EnergyReader, NullEnergyReader
from slurm_energy.profiling.process_identity import ProcessIdentity, current_process, profile_directory
from slurm_energy.profiling.recorder import SectionRecorder
from slurm_energy.profiling.section import Section
from slurm_energy.profiling.step_recorder import recorder
from slurm_energy.profiling.step_statistics import phase_name

log = logging.getLogger("slurm_energy")

_MAX_NAME_CHARS = 200
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Process:
    """State of a process that measures the energy of sections of its program.

    All sections of the process share this state. A forked child starts with a new state.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reader: EnergyReader | None = None
        self.recorder: SectionRecorder | None = None
        self.is_fork = False

    def open_reader(self) -> EnergyReader:
        if self.reader is None:
            with self.lock:
                if self.reader is None:
                    process = current_process()
                    self.recorder = SectionRecorder(process, profile_directory(process), eager=self.is_fork)
                    self.reader = open_energy_reader(process.job_id)
        return self.reader

    def reset_after_fork(self) -> None:
        self.lock = threading.Lock()  # another thread of the parent may hold the old lock
        if self.reader is not None and self.reader.name == "agent":
            self.reader.close()  # the child's copy of the descriptor; the parent's stays open
        self.reader = None
        if self.recorder is not None:
            self.recorder.abandon()
        self.recorder = None
        self.is_fork = True


_process = _Process()
_stack: ContextVar[tuple[Section, ...]] = ContextVar("slurm_energy_sections", default=())
os.register_at_fork(after_in_child=_process.reset_after_fork)


class profile:  # noqa: N801 (used like a function, as a context manager and as a decorator)
    """Measure the energy of a section of the program.

    `with profile("solve") as section:` measures the `with` block. `@profile("solve")` measures each call of a
    function, including coroutines and generators. Sections can be nested. Each thread and each asyncio task
    has its own stack of sections.

    Args:
        name: name of the section, 1 to 200 printable characters.

    Raises:
        UsageError: the name is not valid.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MAX_NAME_CHARS:
            raise UsageError(
                f"profile: {name!r:.60} is not a valid name",
                todo=f"use 1 to {_MAX_NAME_CHARS} printable characters",
            )
        self._name = name

    def __enter__(self) -> Section:
        reader = _process.open_reader()
        outer = _stack.get()
        path = (*(outer[-1].path if outer else ()), self._name)
        section = Section(path, time.time(), _owner=id(self), _pid=os.getpid())
        _stack.set((*outer, section))
        section._begin = reader.start_reading()
        section._begin_s = time.perf_counter()
        return section

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_s = time.perf_counter()
        stack = _stack.get()
        section = next((s for s in reversed(stack) if s._owner == id(self)), None)
        if section is None:
            return  # entered in another context
        _stack.set(tuple(s for s in stack if s is not section))
        section.seconds = end_s - section._begin_s
        section.failed = kind.__name__ if kind is not None else None
        if section._pid != os.getpid():
            return  # the section began before a fork and belongs to the parent
        reader = _process.open_reader()
        section._end = reader.start_reading()
        recorder.add_section(phase_name(section.name), int(section._begin_s * 1e9), int(end_s * 1e9))
        if _process.recorder is not None:
            _process.recorder.add(section, reader.name)

    def __call__(self, function: _Function) -> _Function:
        """Return a wrapper of `function` that measures each call as a section."""
        return inside(function, functools.partial(profile, self._name))


def results() -> list[dict[str, Any]]:
    """Return the most recent sections of this process as dicts, at most 10,000.

    docs/user-guide.md describes the keys of the dicts.
    """
    return [] if _process.recorder is None else _process.recorder.lines()


def flush() -> None:
    """Write the finished sections to the file now.

    If this function is not called, finished sections are written about once a second, and at the exit of the
    program.
    """
    if _process.recorder is not None:
        _process.recorder.flush()


def process_identity() -> ProcessIdentity:
    """Return the identity of this process: job id, step, node, rank and process id.

    It is the same identity as in the records of the measured sections of the program.
    """
    return current_process() if _process.recorder is None else _process.recorder.process


def open_energy_reader(job_id: int | None) -> EnergyReader:
    """Return an energy reader for this process; log a warning if nothing can be measured.

    In a job the reader queries the node's agent. If no agent responds, or outside Slurm, the counters are
    read directly. If the counters are unreadable too, the returned reader has no readings until the agent
    responds.

    Args:
        job_id: job id in the environment; None outside Slurm.
    """
    why = "this is not a Slurm job"
    agent = None
    if job_id is not None:
        agent = AgentEnergyReader(_socket_path(), job_id)
        try:
            agent.ask()
        except EnergyError as error:
            why = str(error)
        else:
            return agent
    from slurm_energy.profiling.counter_reader import open_counter_reader

    counters = open_counter_reader()
    if counters is not None:
        return counters
    log.warning(
        "slurm_energy: the energy of sections is unknown: %s; the counters cannot be read directly either",
        why,
    )
    return agent or NullEnergyReader()


def _socket_path() -> Path:
    from slurm_energy import config

    try:
        return config.load().for_this_node().agent.socket
    except EnergyError:
        return config.AgentConfig().socket
