"""Which source a process gets: the agent in a Slurm job, else counters that it may read itself, else none."""

from __future__ import annotations

import logging
from pathlib import Path

from slurm_energy.errors import EnergyError
from slurm_energy.profiling.energy_reader import AgentEnergyReader, EnergyReader, NullEnergyReader

log = logging.getLogger("slurm_energy")


def find_energy_reader(job_id: int | None) -> EnergyReader:
    """Return the source for this process; says once why there is none.

    Args:
        job_id: job that the environment names, None outside Slurm.
    """
    why = "this is no Slurm job"
    agent = None
    if job_id is not None:
        agent = AgentEnergyReader(_socket_path(), job_id)
        try:
            agent.ask()
        except EnergyError as error:
            why = str(error)
        else:
            return agent
    from slurm_energy.profiling.counter_reader import open_counter_reader

    devices = open_counter_reader()
    if devices is not None:
        return devices
    log.warning(
        "slurm_energy: the energy of sections is not known: %s; counters cannot be read directly either", why
    )
    return agent or NullEnergyReader()


def _socket_path() -> Path:
    from slurm_energy import config

    try:
        return config.load().agent.socket
    except EnergyError:
        return config.AgentConfig().socket
