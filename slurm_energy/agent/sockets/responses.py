"""Responses of the agent to messages on its socket. docs/reference/protocol.md describes the formats."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_energy import __version__
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.metering import components
from slurm_energy.agent.metering.attribution import OTHER
from slurm_energy.agent.state.rejected_records import RejectedRecord
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.spooled_record import record_id_of
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.errors import NotFoundError
from slurm_energy.quantities import shown

MAX_LISTED = 200


def begin_response(session: Session) -> dict[str, Any]:
    """Return the response to `begin`: the energy policy, and the numbers of applied and failed settings."""
    failed = sum(outcome.failed for outcome in session.outcomes)
    return {"policy": session.policy, "applied": len(session.outcomes) - failed, "failed": failed}


def energy_response(session: Session) -> dict[str, Any]:
    """Return the response to `energy`.

    The response has the joules so far by component, the current watts, and the measured seconds.

    A component with unknown energy is null. The component `other` is left out, because its energy is charged
    seconds later than the energy of the other components. If `other` were included, a program that measures a
    short section would get energy that `other` used before the section.
    """
    joules = components.joules(session.meter)
    return {
        "components": {name: joules.get(name) for name in session.components if name != OTHER},
        "watts": math.fsum(session.power_monitor.watts.values()) if session.power_monitor.watts else None,
        "elapsed_s": session.meter.elapsed_s,
    }


def status_response(
    node: str,
    sessions: Iterable[Session],
    devices: NodeDevices,
    reader: int | None = None,
    tuning: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the fields of the `status` response that describe the node, its jobs and its devices.

    Args:
        node: Slurm's name of the node.
        sessions: running jobs, and ended jobs whose records are not written yet.
        devices: the node's devices.
        reader: uid of the requesting user, who sees energy and power of the user's own jobs only; None for a
            user who may read everything.
        tuning: phase of the tuning by job as `JOBID.RESTART`; None if no job is tuned.
    """
    kinds = collections.Counter(knob.name for knob in devices.knobs.values())
    return {
        "version": __version__,
        "node": node,
        "jobs": [_job(session, reader, (tuning or {}).get(session.owner)) for session in sessions],
        "devices": {
            "counters": [counter.key for counter in devices.counters],
            "knobs": dict(kinds),
            "notes": list(devices.notes),
        },
    }


def _job(session: Session, reader: int | None, tuning: str | None) -> dict[str, Any]:
    job: dict[str, Any] = {
        "job_id": session.job_id,
        "restart_count": session.restart_count,
        "policy": session.policy,
        "phase": session.phase,
    }
    if reader in (None, session.uid):
        watts = session.power_monitor.watts
        job["user"] = session.user
        job["tuning"] = tuning
        job["elapsed_s"] = session.meter.elapsed_s
        job["watts"] = {name: watts.get(name) for name in session.components}
        joules = components.joules(session.meter)
        job["energy_joules"] = {name: joules.get(name) for name in session.components}
    return job


def settings_summary(response: Mapping[str, Any]) -> str:
    """Return a text for the log: how many settings of a new job were applied, and how many failed.

    Args:
        response: the agent's response to the message `begin`, which announces the start of a job.
    """
    return f"{response['applied']} settings, {response['failed']} failed"


def spool_response(spool: Spool, period_spool: Spool | None = None) -> dict[str, Any]:
    """Return the response to the request `spool`, which asks for the undelivered records of the node.

    The response contains counts of records, and the oldest rejected records with reasons.

    Args:
        spool: the job records that the node still stores.
        period_spool: the node's energy periods that the node still stores; None if the agent stores no
            periods. The response about the periods is in the key `periods`.
    """
    periods = {} if period_spool is None else {"periods": spool_response(period_spool)}
    return {
        **periods,
        **spool.state(),
        "deferred_reason": spool.deferred.reason if len(spool.deferred) else None,
        "rejected_folder": str(spool.rejected.folder),
        "rejected_limit_bytes": spool.rejected.limit_bytes,
        "rejected_records": [
            _described(record) for record in itertools.islice(spool.rejected.listing(), MAX_LISTED)
        ],
    }


def resend_response(
    spool: Spool, record_ids: Sequence[str] | None, period_spool: Spool | None = None
) -> dict[str, Any]:
    """Move rejected records back into the spool and return the response to `resend`.

    A record is the energy record of a job, or the energy of the node in a time interval (period).

    Args:
        spool: the spool of energy records.
        record_ids: ids of rejected records and periods to move; None for all.
        period_spool: the spool of periods; None if the agent has no spool of periods.

    Raises:
        NotFoundError: a record is not among the rejected records.
    """
    spools = [spool] if period_spool is None else [spool, period_spool]
    for record_id in record_ids or ():
        if not any(one.rejected.has(record_id) for one in spools):
            raise NotFoundError(f"record {shown(record_id)}", "not among the refused ones", "senergy spool")
    return {"resent": sum(one.resend(record_ids) for one in spools)}


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
