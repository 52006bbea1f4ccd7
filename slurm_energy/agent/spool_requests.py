"""What root may ask of the spool over the agent's socket: a listing, and to send refused records again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from slurm_energy.agent.rejected import RejectedRecord
from slurm_energy.agent.spool import Spool, record_id_of
from slurm_energy.errors import NotFoundError
from slurm_energy.quantities import shown

MAX_LISTED = 200


def listing(spool: Spool) -> dict[str, Any]:
    """Return the answer to `spool`: counts, and the oldest refused records with the reasons."""
    return {
        **spool.state(),
        "deferred_reason": spool.deferral.reason if len(spool.deferral) else None,
        "rejected_folder": str(spool.rejected.folder),
        "rejected_limit_bytes": spool.rejected.limit_bytes,
        "rejected_records": [
            _described(record) for record in itertools.islice(spool.rejected.listing(), MAX_LISTED)
        ],
    }


def resend(spool: Spool, record_ids: Sequence[str] | None) -> dict[str, Any]:
    """Have refused records sent again; None for all of them.

    Raises:
        NotFoundError: a record of such an id was not refused.
    """
    for record_id in record_ids or ():
        if not spool.rejected.has(record_id):
            raise NotFoundError(f"record {shown(record_id)}", "not among the refused ones", "senergy spool")
    return {"resent": spool.resend(record_ids)}


def _described(record: RejectedRecord) -> dict[str, Any]:
    end = record.name.partition("-")[0]
    return {
        "record_id": record_id_of(record.name),
        "end": int(end) if end.isdecimal() else None,
        "bytes": record.bytes,
        "trace": record.has_trace,
        "reason": record.reason,
        "refused_by": record.refused_by,
    }
