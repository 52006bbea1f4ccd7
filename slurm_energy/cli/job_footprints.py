"""Emissions and cost of jobs and steps, from factors and energies that senergyctld returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from slurm_energy.cli.output import note
from slurm_energy.errors import UnavailableError
from slurm_energy.grid.energy_parts import KnownPart, scale
from slurm_energy.grid.factor import EnergyPart
from slurm_energy.grid.footprint import Footprint, GridFactors
from slurm_energy.protocol.energy_parts import MAX_RECORDS, PARTS_PATH, read_response, request_body
from slurm_energy.protocol.grid_requests import grid_factors
from slurm_energy.reports.labels.reserved_hardware import reservation_of

_MAX_REQUESTS: Final = 20
"""Maximum number of requests of a command for the energy by time."""

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.usage import JobUsage


def job_footprints(client: ControllerClient, usages: Sequence[JobUsage]) -> list[Footprint]:
    """Return the emissions and the cost of jobs and steps, in the order of `usages`.

    The energy by time is requested only for jobs during which a factor (carbon intensity or price) changes.
    If the controller does not return this energy, a note is printed, and the power of each of these jobs is
    assumed to be constant.

    Raises:
        EnergyError: the controller does not return the factors.
    """
    if not usages:
        return []
    start, end = min(usage.start for usage in usages), max(usage.end for usage in usages)
    factors = grid_factors(client, start, end)
    parts = _parts_by_record(client, usages, factors)
    return [
        factors.footprint(_parts_of(usage, parts.get(usage.first.record_id, ())), reservation_of(usage))
        for usage in usages
    ]


def _parts_by_record(
    client: ControllerClient, usages: Sequence[JobUsage], factors: GridFactors
) -> dict[str, list[KnownPart]]:
    """Return the energy by time of the jobs during which a factor changes, by id of their first record."""
    ids = [
        usage.first.record_id
        for usage in usages
        if usage.energy_joules and not factors.are_constant(usage.start, usage.end)
    ]
    parts: dict[str, list[KnownPart]] = {}
    first = 0
    try:
        for first in range(0, len(ids), MAX_RECORDS):
            if first >= _MAX_REQUESTS * MAX_RECORDS:
                why = f"more than {_MAX_REQUESTS * MAX_RECORDS} jobs and steps"
                raise UnavailableError("energy by time", why, "ask for fewer jobs")
            body = request_body(ids[first : first + MAX_RECORDS])
            parts |= read_response(client.post(PARTS_PATH, body))
    except UnavailableError as error:
        of_some = f" of {len(ids) - first} jobs and steps" if first else ""
        assumption = "as if the power of each job were constant"
        note(f"emissions and cost{of_some} are computed {assumption}: {error}")
    return parts


def _parts_of(usage: JobUsage, parts: Sequence[KnownPart]) -> Sequence[EnergyPart]:
    """Return the energy of a job by time; the whole time of the job is one part if no parts are known."""
    energy = usage.energy_joules
    divided = [] if energy is None else scale(parts, energy)
    return divided or [(usage.start, usage.end, energy)]
