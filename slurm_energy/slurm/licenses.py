"""Slurm's licenses: lists that jobs request, totals of the cluster, and reservations of licenses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import Runner, run_command

MAX_COUNT: Final = (1 << 31) - 1
"""Maximum count of a license. Slurm wraps a larger count to 32 bits without an error."""
MIN_RESERVED: Final = 1
"""Minimum count in a reservation of licenses: Slurm 26.05 refuses 0."""

BUDGET_PREFIX: Final = "senergy_budget"
"""Prefix of the names of the reservations that withhold power from jobs."""

_ITEM: Final = re.compile(r"\s*(?P<name>[^\s:=*@]+)\s*(?:[:=*](?P<count>\d{1,32}))?\s*", re.ASCII)
_PADDED_ITEM: Final = re.compile(r"\s*(?P<name>[^\s:=*@|()]+)(?:[:=]\s*(?P<count>[+-]?\d+))?\s*", re.ASCII)
_POOL: Final = re.compile(r"(?:^|\s)(LicenseName|Total|Used|Reserved|Remote)=(\S*)")
_RESERVATION: Final = re.compile(r"(?:^|\s)(ReservationName|StartTime|EndTime|Licenses|Users)=(\S*)")
_NO_TIME: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class LicensePool:
    """A local license of the cluster.

    Attributes:
        total: number of licenses in slurm.conf.
        used: number of licenses that are allocated to jobs.
    """

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class LicenseReservation:
    """A Slurm reservation that withholds some copies of a license from all jobs.

    Attributes:
        start_unix_s: start, Unix seconds.
        end_unix_s: end, Unix seconds; None means no end.
        license: name of the license.
        count: number of withheld copies of the license.
    """

    start_unix_s: int
    end_unix_s: int | None
    license: str
    count: int

    def is_lasting(self, now_unix_s: float) -> bool:
        """Return whether the reservation has begun and has no end."""
        return self.end_unix_s is None and self.start_unix_s <= now_unix_s


def split_licenses(text: str, ours: Sequence[str]) -> tuple[list[str], dict[str, int | None]]:
    """Split a list of licenses in two: the counts of the licenses in `ours`, and all other items.

    The list has the notation of squeue and sbatch. If a name occurs in several items, their counts are added,
    as in Slurm.

    Args:
        text: list of licenses; `(null)` is an empty list.
        ours: names of the licenses whose counts are returned.

    Returns:
        The other items, and the count by name of the given licenses; a count that is not valid is None.
    """
    others: list[str] = []
    counts: dict[str, int | None] = {}
    for item in re.split(r"[,;|]", "" if text == "(null)" else text):
        match = _ITEM.fullmatch(item)
        name = match["name"] if match else ""
        if match is None or name not in ours:
            if item.strip():
                others.append(item.strip())
            continue
        total = int(match["count"] or 1) + (counts.get(name, 0) or 0)
        is_valid = 1 <= total <= MAX_COUNT and counts.get(name, 0) is not None
        counts[name] = total if is_valid else None
    return others, counts


def join_licenses(others: Sequence[str], counts: Mapping[str, int]) -> str:
    """Return a list of licenses in Slurm's notation: the items of `others`, then NAME:COUNT for `counts`."""
    return ",".join([*others, *(f"{name}:{count}" for name, count in counts.items())])


def plain_licenses(text: str) -> str:
    """Return a list of licenses in its shortest form, with the same counts.

    Slurm accepts blanks, a sign and leading zeros in a count, and the same name several times. Like Slurm,
    the function takes the lower 32 bits of each count (_build_license_list in src/slurmctld/licenses.c).
    """
    others: list[str] = []
    counts: dict[str, int] = {}
    for item in re.split(r"[,;]", text):
        match = _PADDED_ITEM.fullmatch(item)
        if match is not None:
            counts[match["name"]] = counts.get(match["name"], 0) + int(match["count"] or 1) % (1 << 32)
        elif item.strip():
            others.append(item.strip())
    return join_licenses(others, counts)


def read_license_pools(run: Runner = run_command) -> dict[str, LicensePool]:
    """Return the local licenses of the cluster by name.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    pools: dict[str, LicensePool] = {}
    for line in run(["scontrol", "--oneliner", "show", "licenses"]).splitlines():
        values = dict(_POOL.findall(line))
        if values.get("Remote") == "no" and values.get("Total", "").isdecimal():
            used = values.get("Used", "")
            pools[values["LicenseName"]] = LicensePool(
                int(values["Total"]), int(used) if used.isdecimal() else 0
            )
    return pools


class LicenseReservations:
    """Writer of the license reservations whose names begin with a prefix.

    Other reservations stay unchanged.

    Args:
        prefix: start of the names.
        run: function that executes a command and returns the output of the command.
    """

    def __init__(self, prefix: str, run: Runner = run_command) -> None:
        self._prefix, self._run = prefix, run
        self._present: dict[str, LicenseReservation] | None = None

    def read(self) -> dict[str, LicenseReservation]:
        """Return the license reservations in slurmctld by the names of the reservations.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        reservations: dict[str, LicenseReservation] = {}
        for line in self._run(["scontrol", "--oneliner", "show", "reservations"]).splitlines():
            values = dict(_RESERVATION.findall(line))
            name = values.get("ReservationName", "")
            license_name, _, count = values.get("Licenses", "").partition(":")
            times = (values.get("StartTime", ""), values.get("EndTime", ""))
            if name.startswith(self._prefix) and all(time.isdecimal() for time in times):
                start, end = int(times[0]), int(times[1])
                reserved = int(count) if count.isdecimal() else 0
                reservations[name] = LicenseReservation(start, end, license_name, reserved)
        return reservations

    def apply(self, wanted: Mapping[str, LicenseReservation], now_unix_s: float) -> int:
        """Make the license reservations in slurmctld equal to `wanted`; return the number of changes.

        Only changes since the last call are written. After an error, all reservations are read again.

        Slurm adds up the counts of a new reservation and of all reservations that overlap it in time, even if
        these do not overlap each other. It refuses the new reservation if the sum exceeds the total
        (_license_validate2 in src/slurmctld/reservation.c). A reservation without an end overlaps all others.
        It is therefore created first, and if it is missing, the others are deleted and created again.
        Reductions of counts are written before increases.

        Slurm does not change the start of a reservation that has begun (update_resv). If such a reservation
        must begin later, it is deleted and created again.

        Args:
            wanted: reservations by name. Each name begins with the prefix of this writer.
            now_unix_s: present time in Unix seconds.

        Raises:
            UnavailableError: slurmctld does not answer or refuses a reservation.
        """
        if self._present is None:
            self._present = self.read()
        present = {
            name: one for name, one in self._present.items() if (one.end_unix_s or _NO_TIME) > now_unix_s
        }
        missing = {
            new.license for name, new in wanted.items() if name not in present and new.is_lasting(now_unix_s)
        }
        changes = 0
        try:
            for name, one in list(present.items()):
                if one.license in missing or _must_delete(one, wanted.get(name), now_unix_s):
                    self._scontrol("delete", f"ReservationName={name}")
                    del present[name]
                    changes += 1
            for name in _order_of_changes(present, wanted, now_unix_s):
                changes += self._write(name, present.get(name), wanted[name], now_unix_s)
        except UnavailableError:
            self._present = None
            raise
        self._present = dict(wanted)
        return changes

    def _write(
        self, name: str, old: LicenseReservation | None, new: LicenseReservation, now_unix_s: float
    ) -> bool:
        count = f"Licenses={new.license}:{max(new.count, MIN_RESERVED)}"
        if old is None:
            start = "now" if new.start_unix_s <= now_unix_s else f"uts{new.start_unix_s}"
            end = "Duration=infinite" if new.end_unix_s is None else f"EndTime=uts{new.end_unix_s}"
            what = (f"ReservationName={name}", f"StartTime={start}", end, count)
            # A reservation needs users; only they can use it.
            self._scontrol("create", "reservation", *what, "Users=root", "Flags=ANY_NODES")
            return True
        words = [] if max(old.count, MIN_RESERVED) == max(new.count, MIN_RESERVED) else [count]
        words += _changed_times(old, new, now_unix_s)
        if words:
            self._scontrol("update", f"ReservationName={name}", *words)
        return bool(words)

    def _scontrol(self, *words: str) -> None:
        try:
            self._run(["scontrol", *words])
        except UnavailableError as error:
            raise UnavailableError(f"reservation of licenses, scontrol {words[0]}", str(error)) from None


def _must_delete(old: LicenseReservation, new: LicenseReservation | None, now_unix_s: float) -> bool:
    """Return whether a reservation in slurmctld cannot be changed to `new`.

    Args:
        old: the reservation in slurmctld.
        new: the wanted reservation of the same name; None means that no reservation of this name is wanted.
        now_unix_s: present time in Unix seconds.
    """
    if new is None or new.license != old.license:
        return True
    return old.start_unix_s <= now_unix_s < new.start_unix_s


def _order_of_changes(
    present: Mapping[str, LicenseReservation], wanted: Mapping[str, LicenseReservation], now_unix_s: float
) -> list[str]:
    """Return the names of the wanted reservations in the order in which Slurm accepts the changes.

    Args:
        present: reservations in slurmctld.
        wanted: wanted reservations.
        now_unix_s: present time in Unix seconds.
    """

    def rank(name: str) -> tuple[bool, int]:
        old, new = present.get(name), wanted[name]
        is_new_and_lasting = old is None and new.is_lasting(now_unix_s)
        return not is_new_and_lasting, new.count - (old.count if old else 0)

    return sorted(wanted, key=rank)


def _changed_times(old: LicenseReservation, new: LicenseReservation, now_unix_s: float) -> list[str]:
    """Return the words of scontrol that change the times of a reservation.

    The words that change the start also state the end. Without the end, Slurm would count all later
    reservations as overlapping.
    """
    words = []
    if new.start_unix_s > now_unix_s and old.start_unix_s != new.start_unix_s:
        words.append(f"StartTime=uts{new.start_unix_s}")
    elif old.start_unix_s > now_unix_s >= new.start_unix_s:
        words.append("StartTime=now")
    if new.end_unix_s is not None and (words or old.end_unix_s != new.end_unix_s):
        words.append(f"EndTime=uts{new.end_unix_s}")
    return words
