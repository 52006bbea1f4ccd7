"""Where joules come from, and the node's agent as the source inside a job. The counters are in `counters`."""

from __future__ import annotations

import collections
import json
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from slurm_energy.errors import EnergyError, UnavailableError

log = logging.getLogger("slurm_energy")

_TIMEOUT_S = 1.0
_RETRY_AFTER_S = 5.0
_KEPT_S = 30.0
"""A connection that was idle for longer is opened anew: the agent closes it after a minute."""
_MOST_ASKED = 64
"""Questions without an answer; with more of them the agent could not get rid of its answers."""
_LONGEST_ANSWER_BYTES = 1 << 20
_SAME_CLOCK_S = 60.0
"""A sample further away was told by another clock: a container can have its own."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy so far.

    Attributes:
        joules: by component; None: not known.
        age_s: seconds between the moment asked about and the agent's sample.
    """

    joules: Mapping[str, float | None]
    age_s: float = 0.0


@dataclass(slots=True)
class _Question:
    """A question to the agent: `reading` is the answer once it is `done`, None if there will be none.

    It is about the moment in which it was made, seconds of CLOCK_BOOTTIME.
    """

    asked_s: float = field(default_factory=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    done: bool = False
    reading: EnergyReading | None = None


class EnergyReader(ABC):
    """Gives readings of energy so far; only their differences mean anything.

    Attributes:
        name: for the lines: `agent` (the job's energy on this node), `devices` (the whole node's) or `none`.
    """

    name: str

    @abstractmethod
    def read(self) -> EnergyReading | None:
        """Return the energy so far; None if it cannot be known now."""

    def begin(self) -> Callable[[], EnergyReading | None]:
        """Take a reading now, and return what gives it later."""
        reading = self.read()
        return lambda: reading

    def close(self) -> None:
        """Give sockets and files back."""
        return


class NullEnergyReader(EnergyReader):
    """Where nothing can be measured."""

    name = "none"

    def read(self) -> EnergyReading | None:
        """Return None."""
        return None


class AgentEnergyReader(EnergyReader):
    """The `energy` message of this node's senergyd, over one connection that stays open.

    The job id only names the job: the agent looks at who asks. Answers come in the order of the questions, so
    that `begin` asks and whoever reads next collects its answer.
    """

    name = "agent"

    def __init__(self, path: Path, job_id: int) -> None:
        self._path = path
        message = {"op": "energy", "job_id": job_id, "fresh": True}
        self._message = json.dumps(message).encode() + b"\n"
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._rest = b""
        self._asked: collections.deque[_Question] = collections.deque()
        self._used_s = 0.0
        self._not_before = 0.0

    def begin(self) -> Callable[[], EnergyReading | None]:
        """Ask, and return what waits for the answer: the program need not stand still until it comes."""
        question = _Question()
        self._guarded(lambda: self._put(question))
        return lambda: question.reading if question.done else self._guarded(lambda: self._collect(question))

    def read(self) -> EnergyReading | None:
        """Ask the agent; after a failure nobody waits for it again for some seconds."""
        return self._guarded(self.ask)

    def ask(self) -> EnergyReading:
        """Return what the agent answers.

        Raises:
            UnavailableError: nobody answers.
            EnergyError: the agent refused, in its own words.
        """
        kept = self._connection is not None
        try:
            return self._exchange()
        except (OSError, ValueError):
            if not kept:
                raise self._unreachable() from None
        try:
            return self._exchange()  # the agent closes idle connections, and may have been restarted
        except (OSError, ValueError):
            raise self._unreachable() from None

    def close(self) -> None:
        """Close the connection; questions without an answer have none."""
        connection, self._connection, self._rest = self._connection, None, b""
        while self._asked:
            self._asked.popleft().done = True
        if connection is not None:
            connection.close()

    def _guarded(self, action: Callable[[], _Result]) -> _Result | None:
        if not self._lock.acquire(timeout=2 * _TIMEOUT_S):
            return None
        try:
            return action() if time.monotonic() >= self._not_before else None
        except (EnergyError, OSError, ValueError) as error:
            if not isinstance(error, ConnectionError):  # a lost connection: the next question opens another
                self._not_before = time.monotonic() + _RETRY_AFTER_S
            log.debug("%s", error)
            return None
        finally:
            self._lock.release()

    def _exchange(self) -> EnergyReading:
        question = _Question()
        self._send(question)
        reading = self._collect(question)
        if reading is None:
            raise ConnectionError("no answer")
        return reading

    def _put(self, question: _Question) -> None:
        """Ask without waiting: over the open connection if the agent has not closed it meanwhile."""
        self._take_arrived()
        if len(self._asked) >= _MOST_ASKED:
            self._collect(self._asked[0])
        kept = self._connection is not None
        try:
            self._send(question)
        except OSError:
            if not kept:
                raise
            self._send(question)

    def _take_arrived(self) -> None:
        """Take the answers that are there; a connection that has ended is closed."""
        if self._connection is None:
            return
        self._connection.settimeout(0)
        try:
            while self._asked:
                self._take(self._connection)
            if not self._rest and self._connection.recv(1, socket.MSG_PEEK) == b"":
                self.close()
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self.close()
        finally:
            if self._connection is not None:
                self._connection.settimeout(_TIMEOUT_S)

    def _send(self, question: _Question) -> None:
        if time.monotonic() - self._used_s > _KEPT_S and not self._asked:
            self.close()
        try:
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._connection.settimeout(_TIMEOUT_S)
                self._connection.connect(str(self._path))
            self._connection.sendall(self._message)
        except BaseException:
            self.close()
            raise
        self._used_s = time.monotonic()
        self._asked.append(question)

    def _collect(self, wanted: _Question) -> EnergyReading | None:
        """Read answers up to the one that is wanted."""
        try:
            while not wanted.done and self._asked and self._connection is not None:
                self._take(self._connection)
        except EnergyError:
            raise
        except BaseException:
            self.close()  # an answer that comes later must not be taken for that of the next question
            raise
        return wanted.reading

    def _take(self, connection: socket.socket) -> None:
        """Take the next answer, which is that of the oldest question."""
        answer = json.loads(self._line(connection))
        question = self._asked.popleft()
        question.done = True
        question.reading = self._reading(answer, question.asked_s)

    def _reading(self, answer: Any, asked_s: float) -> EnergyReading:
        if not isinstance(answer, dict):
            raise ValueError("not an object")
        if not answer.get("ok") or not isinstance(answer.get("components"), dict):
            raise EnergyError(f"agent {self._path}", str(answer.get("error", "an answer without energy")))
        age_s, sampled_s = float(answer.get("age_s") or 0.0), answer.get("sampled_s")
        if isinstance(sampled_s, (int, float)) and abs(sampled_s - asked_s) < _SAME_CLOCK_S:
            age_s = abs(sampled_s - asked_s)  # an agent that was busy took its sample later
        return EnergyReading(answer["components"], age_s)

    def _line(self, connection: socket.socket) -> bytes:
        while b"\n" not in self._rest:
            data = connection.recv(65536)
            if not data or len(self._rest) > _LONGEST_ANSWER_BYTES:
                raise ConnectionError("no answer")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _unreachable(self) -> UnavailableError:
        return UnavailableError(f"agent {self._path}", "no answer", "is senergyd running on this node?")
