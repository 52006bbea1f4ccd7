"""What an earlier run of the agent left: jobs that still run, jobs that have ended. Sets nothing."""

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
    """Load the jobs of an earlier run, and the node's books from its latest checkpoint.

    Args:
        state: the agent's directory.
        spool: records for the controller.
        meter: takes the books.
        boot_id: jobs of another boot have ended with it.

    Returns:
        Jobs that run, jobs whose end is not complete, and jobs to forget once their record is on disk.
    """
    found = state.load()
    sessions = [session for session, _ in found if not spool.has(session.record_id)]
    recorded = [session for session, _ in found if session not in sessions]
    _load_accounts(state, meter, [checkpoint for _, checkpoint in found], sessions)
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
    """Go on from the latest checkpoint that can be read, whichever job's file it is in."""
    if (books := state.load_accounts()) is not None:
        checkpoints.append(books)
    running = [session for session in sessions if session.phase != CLOSING]
    for checkpoint in sorted(checkpoints, key=_sequence, reverse=True):
        try:
            meter.load(checkpoint, running)
            return
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            log.error("energy accounts of an earlier run cannot be read, older ones count: %s", why)


def _sequence(checkpoint: Any) -> int:
    """Return the place of a checkpoint among all; -1 for what is none."""
    number = checkpoint.get("sequence") if isinstance(checkpoint, dict) else None
    return number if isinstance(number, int) else -1
