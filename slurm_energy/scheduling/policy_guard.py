"""Protection of the simulator and the live engine against faults in a site's own policy.

The module detects inputs that the policy changed, endless calls, and results that vary for the same input. A
built-in policy is called directly. The simulator and the live engine call a site's policy through this
module, so that a fault is reported in one line that names the policy, the file and the line.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, fault

CALL_LIMIT_S: Final = 30.0
"""Time after which a call is interrupted. A call for 100,000 jobs takes about 20 ms."""
SLOW_S: Final = 1.0
"""Duration from which a call is reported as slow."""
_POLL_S: Final = 0.25
_REPEAT_INTERVAL: Final = 1024

Rank = Callable[[Queue, Options], Ranking]


class PolicyTimeoutError(BaseException):
    """Raised when a call of a site's policy takes longer than `CALL_LIMIT_S`.

    The class is no subclass of `Exception`. Therefore even a policy that catches every `Exception` is
    interrupted.
    """


@dataclass(slots=True)
class PolicyCalls:
    """Statistics and anomalies of the calls of a site's policy.

    Attributes:
        count: number of calls.
        total_s: duration of all calls.
        max_s: duration of the longest call.
        max_jobs: number of pending jobs in the longest call.
        difference: description of how two calls with the same queue differed; empty if no two calls differed.
    """

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0
    max_jobs: int = 0
    difference: str = ""

    def notes(self, name: str) -> list[str]:
        """Return remarks for the user about how the scheduling policy `name` behaves, one line each.

        A remark states, for example, that the policy is slow.
        """
        lines = []
        if self.max_s >= SLOW_S:
            mean_s = self.total_s / self.count
            lines.append(
                f"policy '{name}' is slow: up to {self.max_s:.1f} s for {self.max_jobs} jobs, "
                f"{mean_s:.2f} s on average"
            )
        if self.difference:
            lines.append(f"policy '{name}' is not deterministic: {self.difference}")
        return lines


_calls: dict[str, PolicyCalls] = {}


def observed_calls(name: str) -> PolicyCalls:
    """Return the statistics of calls of a scheduling policy since the last call of `forget_calls`.

    `name` is the name of the policy.
    """
    return _calls.setdefault(name, PolicyCalls())


def forget_calls(name: str) -> None:
    """Delete the statistics about the calls of the scheduling policy `name`."""
    _calls.pop(name, None)


def guarded_rank(name: str, function: Rank, queue: Queue, options: Options) -> Ranking:
    """Return the ranking of a site's policy, with columns of the expected types.

    The policy gets read-only views of the columns and a copy of the options.

    Args:
        name: name of the policy.
        function: ranking function of the policy.
        queue: the pending jobs.
        options: options of the site.

    Raises:
        UsageError: the function failed, took too long, or returned an invalid ranking.
    """
    calls = observed_calls(name)
    inputs = read_only(queue)
    began_s = time.perf_counter()
    try:
        with _watchdog.limit():
            ranking = function(inputs, replace(options, weights=dict(options.weights)))
            wrong = fault(ranking, queue)
    except PolicyTimeoutError as error:
        why = f"a call for {queue.jobs.count} jobs took longer than {CALL_LIMIT_S:g} s"
        raise UsageError(f"policy '{name}'{_line_of(error, function)}", why, "is a loop endless?") from None
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {shown(str(error), 120)}"
        todo = "columns of the queue cannot be changed" if "read-only" in str(error) else ""
        raise UsageError(f"policy '{name}'{_line_of(error, function)}", why, todo) from None
    if wrong:
        raise UsageError(
            f"policy '{name}'{_definition(function)}", wrong, "see Ranking in slurm_energy.scheduling"
        )
    spent_s = time.perf_counter() - began_s
    calls.count += 1
    calls.total_s += spent_s
    if spent_s > calls.max_s:
        calls.max_s, calls.max_jobs = spent_s, queue.jobs.count
    if not calls.difference and spent_s < SLOW_S and _is_repeated(calls.count):
        calls.difference = _difference(ranking, function, inputs, options)
    return _converted(ranking)


def read_only(queue: Queue) -> Queue:
    """Return a queue with read-only columns, so that a scheduling policy cannot change them.

    The columns are views of the columns of `queue`.
    """
    frozen: Queue = _frozen(queue)
    return frozen


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{spec.name: _frozen(getattr(value, spec.name)) for spec in fields(value)})
    return value


def _is_repeated(count: int) -> bool:
    """Return whether to repeat a call of a scheduling policy, to check that it is deterministic.

    A repeated call must give the same result as the first call. The calls 1, 2, 4, 8 and so on are
    repeated up to call 1024. Later, every 1024th call is repeated.

    Args:
        count: number of the call.
    """
    return count % _REPEAT_INTERVAL == 0 if count >= _REPEAT_INTERVAL else count & (count - 1) == 0


def _difference(ranking: Ranking, function: Rank, inputs: Queue, options: Options) -> str:
    try:
        with _watchdog.limit():
            second = function(inputs, replace(options, weights=dict(options.weights)))
            if fault(second, inputs):
                return "a second call for the same queue returned an invalid ranking"
    except (Exception, SystemExit, PolicyTimeoutError) as error:
        return f"a second call for the same queue failed: {type(error).__name__}: {shown(str(error))}"
    for column in ("tier", "choice", "score"):
        one, other = np.asarray(getattr(ranking, column)), np.asarray(getattr(second, column))
        rows = np.flatnonzero(one != other)
        if len(rows):
            job = inputs.jobs.job_id[rows[0]]
            values = f"{one[rows[0]]}, {other[rows[0]]}"
            return f"two calls for the same queue differ in the {column} of job {job}: {values}"
    return ""


def _converted(ranking: Ranking) -> Ranking:
    return replace(
        ranking,
        tier=np.asarray(ranking.tier).astype(np.int64),
        score=np.asarray(ranking.score).astype(np.float64),
        choice=np.asarray(ranking.choice).astype(np.int64),
    )


def _line_of(error: BaseException, function: Rank) -> str:
    """Return ` (FILE:LINE)` of the innermost stack frame in the policy's file.

    If no frame of the error is in this file, return the innermost frame of all.
    """
    own = getattr(getattr(function, "__code__", None), "co_filename", "")
    location, trace = "", error.__traceback__
    inner = ""
    while trace is not None:
        inner = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        if trace.tb_frame.f_code.co_filename == own:
            location = inner
        trace = trace.tb_next
    return location or inner


def _definition(function: Rank) -> str:
    code = getattr(function, "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""


class _Watchdog:
    """Thread that interrupts calls after `CALL_LIMIT_S`.

    The interrupt is an exception in the calling thread, raised between two bytecodes. A call that is
    executing compiled code is interrupted when the compiled code returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[int, float] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Limit the time that a block of code may take in this thread."""
        thread = threading.get_ident()
        with self._lock:
            self._deadlines[thread] = time.monotonic() + CALL_LIMIT_S
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="policy-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            self._end(thread)

    def _end(self, thread: int) -> None:
        while True:
            try:
                with self._lock:
                    self._deadlines.pop(thread, None)
                    # The block has ended: withdraw an exception that was sent but not raised yet.
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
                return
            except PolicyTimeoutError:
                continue

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_S)
            with self._lock:
                now_s = time.monotonic()
                for thread, deadline_s in self._deadlines.items():
                    if now_s > deadline_s:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(thread), ctypes.py_object(PolicyTimeoutError)
                        )
                if not self._deadlines:
                    self._thread = None
                    return


_watchdog = _Watchdog()


def _new_watchdog() -> None:
    """Replace the watchdog in a forked child process.

    The child inherits the watchdog's state, but not the watchdog's thread.
    """
    global _watchdog  # noqa: PLW0603
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_new_watchdog)
