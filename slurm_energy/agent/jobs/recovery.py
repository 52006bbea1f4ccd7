"""Recovery of the agent's state after a restart of the agent.

The state consists of the sessions (the agent's data about running and ended jobs), and of the energy
that was charged so far to jobs, idle time and unknown use (energy ledger).
"""

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
    """Load the sessions and the energy ledger of an earlier run of the agent.

    The energy ledger comes from the latest checkpoint of that run.

    Args:
        state: the state directory.
        spool: records that the controller does not have yet.
        meter: receives the state of the energy ledger.
        boot_id: identifier of the current boot. Jobs of another boot have ended.

    Returns:
        Three lists: running jobs, ended jobs without a record, and jobs with a record in the spool. The
        caller removes the jobs of the third list once their records are synced to disk.
    """
    loaded = state.load()
    sessions = [session for session, _ in loaded if not spool.has(session.record_id)]
    recorded = [session for session, _ in loaded if session not in sessions]
    _load_accounts(state, meter, [checkpoint for _, checkpoint in loaded], sessions)
    for session in sessions:
        recorded_steps = [name for name, step in session.steps.items() if spool.has(step.record_id)]
        for name in recorded_steps:  # the agent died before it wrote the session without the step
            del session.steps[name]
        if session.phase != CLOSING and session.boot_id != boot_id:
            session.end_unix = session.unix_at(session.meter.start + session.meter.elapsed_s)
            session.phase = CLOSING
            session.note("the node was restarted: the record ends at the last checkpoint before")
    ended = [session for session in sessions if session.phase == CLOSING]
    return [session for session in sessions if session.phase != CLOSING], ended, recorded


def _load_accounts(
    state: StateDirectory, meter: NodeEnergyMeter, checkpoints: list[dict[str, Any]], sessions: list[Session]
) -> None:
    """Load the energy accounts of the node into `meter` from the latest readable checkpoint.

    Checkpoints are in the session file (saved state) of each job and in the accounts file.
    """
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
    """Return the number that orders the checkpoints of the agent.

    The result is -1 if the checkpoint is malformed.
    """
    number = checkpoint.get("sequence") if isinstance(checkpoint, dict) else None
    return number if isinstance(number, int) else -1
