"""Sections of a program: `with profile("phase"):` and `@profile("phase")`. What a program sees of profiling.

A section's joules are those of the whole job on this node (of the whole node outside Slurm) while it ran, not
of the calling process alone. Exceptions pass through; failures to measure never reach the program. Both ends
of a section only ask: the program waits for an answer when it looks at the joules, not before.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from slurm_energy.errors import UsageError
from slurm_energy.profiling.energy_reader import EnergyReader
from slurm_energy.profiling.finding import find_energy_reader
from slurm_energy.profiling.process_identity import ProcessIdentity, current_process, profile_directory
from slurm_energy.profiling.recorder import SectionRecorder
from slurm_energy.profiling.section import Section

_LONGEST_NAME = 200
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Process:
    """What the sections of one process share; a forked child begins anew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.source: EnergyReader | None = None
        self.recorder: SectionRecorder | None = None
        self.is_fork = False

    def opened(self) -> EnergyReader:
        if self.source is None:
            with self.lock:
                if self.source is None:
                    place = current_process()
                    self.recorder = SectionRecorder(place, profile_directory(place), eager=self.is_fork)
                    self.source = find_energy_reader(place.job_id)
        return self.source

    def forked(self) -> None:
        self.lock = threading.Lock()  # another thread may have held it
        if self.source is not None and self.source.name == "agent":
            self.source.close()  # the child's copy of the descriptor; the parent's stays open
        self.source = None
        if self.recorder is not None:
            self.recorder.abandon()
        self.recorder = None
        self.is_fork = True


_process = _Process()
_stack: ContextVar[tuple[Section, ...]] = ContextVar("slurm_energy_sections", default=())
os.register_at_fork(after_in_child=_process.forked)


class profile:  # noqa: N801 (used like a function, as a context manager and as a decorator)
    """Measure a section of the program.

    `with profile("solve") as section:` measures the block, `@profile("solve")` every call of a function
    (coroutines and generators too). Sections nest; threads and asyncio tasks have their own stacks.

    Args:
        name: of the section, up to 200 printable characters.

    Raises:
        UsageError: not such a name.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            raise UsageError(
                f"profile: {name!r:.60} is no name", todo=f"1 to {_LONGEST_NAME} printable characters"
            )
        self._name = name

    def __enter__(self) -> Section:
        source = _process.opened()
        outer = _stack.get()
        path = (*(outer[-1].path if outer else ()), self._name)
        section = Section(path, time.time(), _owner=id(self), _pid=os.getpid())
        _stack.set((*outer, section))
        section._begin = source.begin()
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
            return  # begun before a fork: it is the parent's
        source = _process.opened()
        section._end = source.begin()
        if _process.recorder is not None:
            _process.recorder.add(section, source.name)

    def __call__(self, function: _Function) -> _Function:
        """Return `function`, measured at every call."""
        name = self._name
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with profile(name):
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with profile(name):
                    return (yield from function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with profile(name):
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[no-any-return]


def results() -> list[dict[str, Any]]:
    """Return the lines of this process's last sections (up to 10,000), see docs/user-guide.md."""
    return [] if _process.recorder is None else _process.recorder.lines()


def flush() -> None:
    """Write lines that wait to the process's file now; done by itself every second and at the end."""
    if _process.recorder is not None:
        _process.recorder.flush()


def process_identity() -> ProcessIdentity:
    """Return the place that this process's lines name."""
    return current_process() if _process.recorder is None else _process.recorder.place
