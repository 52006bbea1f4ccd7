"""Detection of the active slurmctld: by the heartbeat file in StateSaveLocation, else by `scontrol ping`.

The active slurmctld writes the heartbeat file at least every 30 s if slurm.conf names a backup. The file
holds two unsigned 64-bit integers in network order: the time, and the index of the active controller in
slurm.conf (src/slurmctld/heartbeat.c; the same in Slurm 22.05 to 26.05).
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.command import CommandRunner, Runner

PING_INTERVAL_S: Final = 60.0
_COMMAND_TIMEOUT_S: Final = 20.0
_CONF_AGE_S: Final = 60.0
_BEAT: Final = struct.Struct("!QQ")
_DEFAULT_STATE: Final = "/var/spool"
_DEFAULT_TIMEOUT_S: Final = 120
_LATE_S: Final = 30.0
"""Time beyond SlurmctldTimeout after which a heartbeat is outdated. It is also the tolerated clock offset."""
_PING: Final = re.compile(r"Slurmctld\([^)]*\) at (\S+) is (UP|DOWN)")


class ActiveSlurmctld:
    """Finds out which host runs the active slurmctld, if slurm.conf names several hosts.

    The method `host` may block for a short time, because it reads files. At most once a minute, it also runs
    a command.

    Args:
        run: function that runs Slurm's commands.
        locate: function that returns the path of slurm.conf, or None if there is no slurm.conf.
        unix_s: function that returns Unix time.
        clock_s: function that returns monotonic time.
    """

    def __init__(
        self,
        run: Runner | None = None,
        locate: Callable[[], Path | None] = conf_files.locate_slurm_conf,
        unix_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._locate = run or CommandRunner(_COMMAND_TIMEOUT_S), locate
        self._unix_s, self._clock_s = unix_s, clock_s
        self._conf_read_s = self._pinged_s = -_CONF_AGE_S
        self._hosts: tuple[str, ...] = ()
        self._heartbeat = Path()
        self._timeout_s = float(_DEFAULT_TIMEOUT_S)
        self._pinged_host: str | None = None

    def host(self) -> str | None:
        """Return the host of the active slurmctld as slurm.conf names it.

        Returns:
            The host. None means that slurm.conf cannot be read or names only one slurmctld, or no slurmctld
            is known to be active.
        """
        if self._clock_s() - self._conf_read_s >= _CONF_AGE_S:
            self._conf_read_s = self._clock_s()
            self._read_conf()
        if len(self._hosts) < 2:
            return None
        try:
            beat = self._heartbeat.read_bytes()
        except OSError:
            return self._ping()
        return self._by_heartbeat(beat)

    def _by_heartbeat(self, beat: bytes) -> str | None:
        if len(beat) != _BEAT.size:
            return None
        written_s, index = _BEAT.unpack(beat)
        is_recent = abs(self._unix_s() - written_s) <= self._timeout_s + _LATE_S
        return self._hosts[index] if is_recent and index < len(self._hosts) else None

    def _ping(self) -> str | None:
        """Return the host of the active slurmctld: the first host that answers.

        The first host is the active one, because a backup resigns when a slurmctld that precedes it in
        slurm.conf starts.
        """
        if self._clock_s() - self._pinged_s >= PING_INTERVAL_S:
            self._pinged_s = self._clock_s()
            try:
                self._pinged_host = first_up(self._run(["scontrol", "ping"]), self._hosts)
            except UnavailableError:
                self._pinged_host = None
        return self._pinged_host

    def _read_conf(self) -> None:
        self._hosts = ()
        path = self._locate()
        if path is None:
            return
        try:
            settings = conf_files.read_settings(path)
        except OSError:
            return
        self._hosts = tuple(line.partition("(")[0].strip() for line in settings.get("slurmctldhost", []))
        state = settings.get("statesavelocation", [_DEFAULT_STATE])[-1]
        self._heartbeat = Path(state) / "heartbeat"
        timeout = settings.get("slurmctldtimeout", [""])[-1]
        self._timeout_s = float(timeout) if timeout.isdecimal() else float(_DEFAULT_TIMEOUT_S)


def first_up(output: str, hosts: Sequence[str]) -> str | None:
    """Return the first host of slurm.conf whose slurmctld is up, by the output of `scontrol ping`."""
    up = {host for host, state in _PING.findall(output) if state == "UP"}
    return next((host for host in hosts if host in up), None)


def is_this_host(name: str) -> bool:
    """Return whether a host name in slurm.conf means this host.

    Names are compared as slurmctld compares them.
    """
    own = os.uname().nodename.lower()
    return name.lower() == own or name.lower().partition(".")[0] == own.partition(".")[0]
