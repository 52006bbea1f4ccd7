"""Copy of the policy file on a host without senergyctld. Submission checks energy flags with the copy.

energy.so finds the copy beside the socket of senergyd, `/run/senergy/policies`. The copy has two further
lines: `issued`, the time since which senergyctld has published the text, and `fresh-until`. After the time
`fresh-until`, energy.so does not use the copy, and checks only the form of flags. Therefore an old copy
cannot refuse the flags of a new policy for long.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import ConfigError, ForbiddenError, UnavailableError
from slurm_energy.protocol.policy_file_requests import FIRST_LINE, PublishedPolicies
from slurm_energy.trusted_files import check_folder, read_trusted, replace_public

FRESH_S: Final = 900.0
"""Seconds for which a copy is used without a confirmation by senergyctld."""
MAX_FRESH_S: Final = 86400.0
"""Maximum seconds for which a copy can be fresh.

A copy that is fresh for longer was written while the clock was ahead. energy.so does not use such a copy
either.
"""
_ISSUED, _FRESH = "issued", "fresh-until"
_LOCK_TIMEOUT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class PolicyCopy:
    """A local copy of the policy file that senergyctld publishes.

    Attributes:
        policies: the published text, and the time since which senergyctld has published this text.
        fresh_until: Unix time until which the copy is used.
    """

    policies: PublishedPolicies
    fresh_until: float

    def is_fresh(self, now: float) -> bool:
        """Return whether the copy of the policy file is fresh enough at the Unix time `now`.

        Slurm's plugin energy.so uses only a fresh copy.
        """
        return 0 < self.fresh_until - now <= MAX_FRESH_S


def copy_path(agent_socket: Path) -> Path:
    """Return the path of the local copy of the policy file.

    The copy is in the directory of the agent's socket (configuration key `agent.socket`).
    """
    return agent_socket.with_name("policies")


def read_copy(path: Path) -> PolicyCopy | None:
    """Return the local copy of the policy file that is stored at `path`.

    None means that the file is missing, is not trusted, or contains no valid copy.
    """
    try:
        text = read_trusted(path).decode()
    except (OSError, ConfigError, UnicodeDecodeError):
        return None
    lines, times = [], dict[str, float]()
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key in (_ISSUED, _FRESH):
            with contextlib.suppress(ValueError):
                times[key] = float(value)
        else:
            lines.append(line)
    if lines[:1] != [FIRST_LINE] or len(times) != 2:
        return None
    published = PublishedPolicies("\n".join([*lines, ""]), times[_ISSUED])
    return PolicyCopy(published, times[_FRESH])


def update_copy(
    path: Path, fetch: Callable[[], PublishedPolicies], clock: Callable[[], float] = time.time
) -> PolicyCopy:
    """Request the policy file from senergyctld, and return the updated local copy.

    A received text is not stored if it is older than a copy that is still fresh. Such a text comes from a
    late response, or from a controller that is no longer active. A lock admits one process at a time.

    Args:
        path: file of the copy. A missing directory is created.
        fetch: function that requests the policy file from senergyctld.
        clock: function that returns Unix seconds.

    Raises:
        UnavailableError: senergyctld does not answer, or the copy cannot be written.
        ForbiddenError: this user may not write the copy.
        ConfigError: other users could replace the copy.
    """
    with _writing(path), _locked(path):
        published, earlier, now = fetch(), read_copy(path), clock()
        if earlier is not None and published.text == earlier.policies.text:
            published = earlier.policies if earlier.policies.issued <= now else published
        elif earlier is not None and earlier.is_fresh(now) and published.issued < earlier.policies.issued:
            return earlier
        return _store(path, PolicyCopy(published, now + FRESH_S))


def confirm_copy(path: Path, digest: str, clock: Callable[[], float] = time.time) -> bool:
    """Mark this node's copy of the policy file as current if senergyctld has confirmed its digest.

    Return whether the copy has the confirmed digest.

    Raises:
        UnavailableError, ForbiddenError, ConfigError: the copy cannot be written, as for `update_copy`.
    """
    with _writing(path), _locked(path):
        earlier = read_copy(path)
        if earlier is None or earlier.policies.digest != digest:
            return False
        now = clock()
        if not now + FRESH_S / 2 < earlier.fresh_until <= now + FRESH_S:
            _store(path, PolicyCopy(earlier.policies, now + FRESH_S))
        return True


def _store(path: Path, copy: PolicyCopy) -> PolicyCopy:
    times = f"{_ISSUED} {copy.policies.issued:.3f}\n{_FRESH} {copy.fresh_until:.0f}\n"
    replace_public(path, (copy.policies.text + times).encode())
    return copy


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Context manager that creates the directory of a file.

    An error while writing to the directory becomes a ForbiddenError or an UnavailableError.
    """
    try:
        if not path.parent.is_dir():
            path.parent.mkdir()
            path.parent.chmod(0o755)  # users read the copy, whatever the umask
        check_folder(path.parent)
        yield
    except PermissionError as error:
        raise ForbiddenError(f"{path}", error.strerror or "", "run this command as root") from None
    except OSError as error:
        raise UnavailableError(f"{path}", error.strerror or str(error)) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Context manager that holds the lock of the local copy of the policy file during an update.

    Raises:
        UnavailableError: another process keeps the lock for too long.
    """
    lock = path.with_name(f"{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        until_s = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise UnavailableError(f"{lock}", "another process updates the copy") from None
            time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)
