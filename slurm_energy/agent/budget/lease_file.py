"""File with the controller's last decision about the power of this node.

The next run of the agent continues from this decision.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy import atomic_file
from slurm_energy.budget.messages import NodeDecision
from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number

log = logging.getLogger(__name__)

_VERSION: Final = 1
_MAX_BYTES: Final = 1_000_000
_RENEWED_SHARE: Final = 0.5
"""The file is written again once the end of the lease has moved by this fraction of the lease's length."""
_SYNC_S: Final = 60.0
"""Minimum time between two writes that are forced to disk: limits may change every second."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The controller's last decision, and the time until which its limits are valid.

    Attributes:
        decision: the controller's decision about the power limits of this node.
        boot_id: identifier of the boot in which the decision was applied.
        until_s: end of the lease in seconds since that boot.
    """

    decision: NodeDecision
    boot_id: str
    until_s: float


class LeaseFile:
    """The file in which a node stores the lease of its last budget decision.

    The lease is the time for which the limits of the decision are valid. The file may contain an older lease
    than the lease in force. An older lease ends earlier, never later.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stored: Lease | None = None
        self._synced: Lease | None = None

    def load(self) -> Lease | None:
        """Return the node's stored lease; None if no lease is stored or the file is damaged.

        A lease contains the controller's last decision about the node's power limits, and the time until
        which the decision is valid.
        """
        try:
            data = json.loads(atomic_file.read(self._path, _MAX_BYTES))
            if data["version"] != _VERSION or not isinstance(data["boot_id"], str):
                raise ValueError(f"version {data['version']}")
            if not is_number(data["until_s"]):
                raise ValueError("until_s is not a number")
            decision = NodeDecision.from_json(data["decision"])
            self._stored = Lease(decision, data["boot_id"], float(data["until_s"]))
        except FileNotFoundError:
            self._stored = None
        except (OSError, ValueError, KeyError, TypeError, UsageError) as error:
            log.error("%s: cannot be read, ceilings stay until the controller decides: %s", self._path, error)
            self._stored = None
        return self._stored

    def store(self, lease: Lease) -> None:
        """Write a lease (power limits with an end time) to the file, unless this would change little.

        The lease is not written if two conditions hold: its limits equal the stored limits, and it ends only
        slightly later than the stored lease. The file survives the end of the agent. After a power failure,
        the content of the file may be a minute old.

        Raises:
            OSError: the file cannot be written.
        """
        stored, synced = self._stored, self._synced
        limits_changed = stored is None or _limits(stored) != _limits(lease)
        renewal_s = _RENEWED_SHARE * lease.decision.lease_s
        if stored is not None and not limits_changed and 0 <= lease.until_s - stored.until_s < renewal_s:
            return
        data = {
            "version": _VERSION,
            "boot_id": lease.boot_id,
            "until_s": lease.until_s,
            "decision": lease.decision.to_json(),
        }
        is_due = (
            synced is None
            or synced.boot_id != lease.boot_id
            or (limits_changed and abs(lease.until_s - synced.until_s) >= _SYNC_S)
        )
        atomic_file.write(self._path, json.dumps(data).encode(), sync=is_due)
        self._stored, self._synced = lease, lease if is_due else synced

    def remove(self) -> None:
        """Remove the file that stores the controller's last decision about the node's power (lease).

        Raises:
            OSError: the file cannot be removed.
        """
        atomic_file.remove(self._path)
        self._stored = self._synced = None


def _limits(lease: Lease) -> tuple[object, ...]:
    decision = lease.decision
    return lease.boot_id, decision.safe_watts, decision.start_watts, decision.lease_s
