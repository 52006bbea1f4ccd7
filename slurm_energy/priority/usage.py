"""Decayed usage and fair shares of users and Slurm accounts.

The module uses neither SQL nor Slurm commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_energy.accounting.usage.consumption import MAX_IDS, ConsumptionRecord
from slurm_energy.scheduling import Users
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.slurm.queue.columns import QueueColumns

Association = tuple[str, str]
"""Association: Slurm account and user."""

WINDOW_HALF_LIVES: Final = 12.0
"""Age of records in half-lives above which they are not read at the start. Such records count less than
1/4096.
"""

_SETTLING_TIMEOUT_S: Final = 3600.0
_RECENT_S: Final = 600.0
_CLOCK_TOLERANCE_S: Final = 60.0  # accepted difference between the clocks of node and controller
_MIN_RELATIVE_SHARE: Final = 1e-6  # relative to the mean; prevents a division by a share of 0


def decay_weight(start_s: Floats, end_s: Floats, now_s: float, half_life_s: float) -> Floats:
    """Return the fraction of the usage of a past interval that still counts now, from 0 to 1.

    Usage is spread evenly over the interval and decays exponentially. The fraction is the mean of 2^(-(now -
    t) / half life) over the interval. This mean prevents a jump when a running job ends and its energy
    record replaces the estimate.

    Args:
        start_s: start of each interval, Unix seconds, any shape.
        end_s: end of each interval, same shape.
        now_s: Unix seconds.
        half_life_s: half-life in seconds, as Slurm's PriorityDecayHalfLife.
    """
    rate = math.log(2.0) / half_life_s
    spent = np.maximum(0.0, end_s - start_s) * rate
    ago = np.maximum(0.0, now_s - end_s) * rate
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(spent > 1e-9, -np.expm1(-spent) / spent, 1.0)
    counted: Floats = np.exp(-ago) * mean
    return counted


@dataclass(slots=True)
class DecayedUsage:
    """Energy and GPU seconds that each association (user in an account) has used, with decay.

    Older usage counts less. Energy records are added as they arrive.

    Attributes:
        half_life_s: seconds after which usage counts half.
        last_row: highest database row that is included.
        records_without_energy: number of records without energy. Only the GPU seconds of these records are
            counted.
    """

    half_life_s: float
    last_row: int = 0
    records_without_energy: int = 0
    _at_s: float = 0.0
    _rows: dict[Association, int] = field(default_factory=dict)
    _joules: Floats = field(default_factory=lambda: np.zeros(0))
    _gpu_seconds: Floats = field(default_factory=lambda: np.zeros(0))
    _unsettled: dict[int, ConsumptionRecord] = field(default_factory=dict)
    _recently_ended: dict[int, ConsumptionRecord] = field(default_factory=dict)

    @property
    def window_s(self) -> float:
        """Maximum age in seconds of the energy records that contribute to the usage."""
        return WINDOW_HALF_LIVES * self.half_life_s

    def without_records(self) -> DecayedUsage:
        """Return a new, empty table of usage with the same half-life.

        It is filled by reading all energy records again.
        """
        return DecayedUsage(self.half_life_s)

    def rows_to_read_again(self) -> list[int]:
        """Return the database rows of the records that must be read again, at most `MAX_IDS`.

        The owner of these records is not confirmed yet. Successive calls return different rows in rotation.
        """
        rows = list(self._unsettled)[:MAX_IDS]
        for row in rows:
            self._unsettled[row] = self._unsettled.pop(row)  # to the end: other rows come next
        return rows

    def add_records(self, records: Iterable[ConsumptionRecord], now_s: float) -> None:
        """Add new energy records to the usage, and update earlier records that were provisional.

        A record is provisional until Slurm has confirmed its user and account.
        """
        self._decay_to(now_s)
        final = []
        for record in records:
            self.last_row = max(self.last_row, record.row)
            if now_s - record.end < _RECENT_S:
                self._recently_ended[record.job_id] = record
            if record.settled or now_s - record.end > _SETTLING_TIMEOUT_S:
                self._unsettled.pop(record.row, None)
                final.append(record)
            else:
                self._unsettled[record.row] = record
        self.records_without_energy += sum(record.energy_joules is None for record in final)
        joules, gpu_seconds = self._counted(final, now_s)
        self._joules, self._gpu_seconds = self._joules + joules, self._gpu_seconds + gpu_seconds

    def finished_rows(self, queue: QueueColumns, now_s: float) -> Bools:
        """Return whether the run of each job in the queue has ended, shape (n,).

        An energy record shows the end of a run. The queue file that slurmctld's plugin writes shows starts
        and ends only once a minute.
        """
        for job in [job for job, record in self._recently_ended.items() if now_s - record.end > _RECENT_S]:
            del self._recently_ended[job]
        over = np.zeros(queue.count, np.bool_)
        for row in np.flatnonzero(np.isin(queue.job_id, list(self._recently_ended))).tolist():
            record = self._recently_ended[int(queue.job_id[row])]
            same_job = not record.start < queue.submit_s[row] - _CLOCK_TOLERANCE_S
            over[row] = same_job and record.restart_count >= queue.restart_count[row]
        return over

    def has_record(self, job_id: int, restart_count: int) -> bool:
        """Return whether there is a recent energy record of a given run of a job.

        A record of a later run of the job also counts.

        Args:
            job_id: Slurm's job id.
            restart_count: number of earlier requeues; it identifies the run.
        """
        record = self._recently_ended.get(job_id)
        return record is not None and record.restart_count >= restart_count

    def association_rows(self, associations: Iterable[Association]) -> Ints:
        """Return the row of each association in the usage table. Append rows for new associations."""
        row_of = self._rows
        rows = [row_of.setdefault(association, len(row_of)) for association in associations]
        return np.array(rows, np.int64)

    def associations(self) -> list[Association]:
        """Return all associations (pairs of account and user) in the order of their row numbers."""
        return list(self._rows)

    def decayed(self, now_s: float) -> tuple[Floats, Floats]:
        """Return the past energy and GPU seconds of each association, with older usage counting less.

        The result is two arrays, in joules and in seconds, with one element per association of user and
        account.
        """
        self._decay_to(now_s)
        joules, gpu_seconds = self._counted(list(self._unsettled.values()), now_s)
        return self._joules + joules, self._gpu_seconds + gpu_seconds

    def _decay_to(self, now_s: float) -> None:
        factor = 2.0 ** (-max(0.0, now_s - self._at_s) / self.half_life_s)
        self._joules, self._gpu_seconds = self._joules * factor, self._gpu_seconds * factor
        self._at_s = now_s  # also if the clock was set back, so that decay goes on

    def _counted(self, records: list[ConsumptionRecord], now_s: float) -> tuple[Floats, Floats]:
        """Return the energy in joules and the GPU seconds of records, summed by association.

        An association is a pair of an account and a user. Old consumption counts less than recent
        consumption. Both results are arrays with one entry for each association, in the order in which this
        object stores the associations. Associations that are new are added to this object.
        """
        rows = self.association_rows(self._owners(records))
        missing = np.zeros(len(self._rows) - len(self._joules))
        self._joules = np.append(self._joules, missing)
        self._gpu_seconds = np.append(self._gpu_seconds, missing)
        start = np.array([record.start for record in records], np.float64)
        end = np.array([record.end for record in records], np.float64)
        counted = decay_weight(start, end, now_s, self.half_life_s)
        used = np.array([record.energy_joules or 0.0 for record in records], np.float64)
        gpus = np.array([record.gpus for record in records], np.float64)
        joules, gpu_seconds = np.zeros(len(self._joules)), np.zeros(len(self._joules))
        np.add.at(joules, rows, used * counted)
        np.add.at(gpu_seconds, rows, gpus * np.maximum(0.0, end - start) * counted)
        return joules, gpu_seconds

    def _owners(self, records: list[ConsumptionRecord]) -> list[Association]:
        """Return the association (Slurm account, user) of each record.

        Slurm reports the account some seconds after the end of a job. Until then the usage of the job would
        belong to no association, and the user's next job would rank too high. If the user has only one
        account, a record without an account is therefore assigned to this account.
        """
        accounts: dict[str, set[str]] = {}
        for account, user in self._rows if any(not record.account for record in records) else ():
            if account:
                accounts.setdefault(user, set()).add(account)
        owners = []
        for record in records:
            accounts_of_user = accounts.get(record.user, set()) if not record.account else set()
            owners.append(
                (next(iter(accounts_of_user)) if len(accounts_of_user) == 1 else record.account, record.user)
            )
        return owners


def users_table(joules: Floats, gpu_seconds: Floats, shares: Floats) -> Users:
    """Return the table of users that scheduling policies read; one row per association.

    Args:
        joules: decayed energy by association.
        gpu_seconds: decayed GPU seconds by association.
        shares: normalised shares by association. NaN means unknown and counts as the mean of the known
            shares.
    """
    known_shares = shares[~np.isnan(shares)]
    mean = float(np.mean(known_shares)) if len(known_shares) and np.mean(known_shares) > 0 else 1.0
    share = np.where(np.isnan(shares), mean, shares)
    return Users(np.maximum(share, mean * _MIN_RELATIVE_SHARE), gpu_seconds, joules)


def shares_of(associations: list[Association], share_by_association: Mapping[Association, float]) -> Floats:
    """Return the normalised fair share of each association (account and user) as an array.

    An unknown share is NaN. There is one exception: if any share is known, an association without a Slurm
    account gets a share of 0. With NaN, it would later get a mean share, which would reduce the shares of
    the other associations.
    """
    unknown = {"": 0.0} if share_by_association else {}
    shares = [share_by_association.get(pair, unknown.get(pair[0], math.nan)) for pair in associations]
    return np.array(shares, np.float64)
