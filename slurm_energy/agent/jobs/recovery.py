"""Recovery of an earlier run of the agent: its running jobs, its ended jobs, its energy accounts."""

from __future__ import annotations

import logging
from typing import Any

from slurm_energy.agent.jobs.sessions import CLOSING, Session
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.state_directory import StateDirectory

log = logging.getLogger(__name__)


def recover(
    state: StateDirectory, spool: Spool, meter: NodeEnergyMeter, boot_id: str
) -> tuple[list[Session], list[Session], list[Session]]:
    """Load the sessions of an earlier run, and the energy accounts from its latest checkpoint.

    Args:
        state: the state directory.
        spool: records for the controller.
        meter: receives the energy accounts.
        boot_id: the current boot; jobs of another boot have ended.

    Returns:
        Running jobs, ended jobs without a record, and jobs to forget once their record is on disk.
    """
    loaded = state.load()
    sessions = [session for session, _ in loaded if not spool.has(session.record_id)]
    recorded = [session for session, _ in loaded if session not in sessions]
    _load_accounts(state, meter, [checkpoint for _, checkpoint in loaded], sessions)
    for session in sessions:
        if session.phase != CLOSING and session.boot_id != boot_id:
            session.end_unix = session.unix_at(session.meter.start + session.meter.elapsed_s)
            session.phase = CLOSING
            session.note("the node was restarted: the record ends at the last checkpoint before")
    ended = [session for session in sessions if session.phase == CLOSING]
    return [session for session in sessions if session.phase != CLOSING], ended, recorded


def _load_accounts(
    state: StateDirectory, meter: NodeEnergyMeter, checkpoints: list[dict[str, Any]], sessions: list[Session]
) -> None:
    """Load the latest readable checkpoint of all session files and the accounts file."""
    if (accounts := state.load_accounts()) is not None:
        checkpoints.append(accounts)
    running = [session for session in sessions if session.phase != CLOSING]
    for checkpoint in sorted(checkpoints, key=_sequence, reverse=True):
        try:
            meter.load(checkpoint, running)
            return
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            log.error("energy accounts of an earlier run cannot be read, using older ones: %s", why)


def _sequence(checkpoint: Any) -> int:
    """Return the sequence number of a checkpoint; -1 if it is malformed."""
    number = checkpoint.get("sequence") if isinstance(checkpoint, dict) else None
    return number if isinstance(number, int) else -1
