"""Request for the energy of jobs and steps by time, for the computation of emissions and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.grid.energy_parts import KnownPart
from slurm_energy.quantities import shown
from slurm_energy.records import is_name

PARTS_PATH: Final = "/v1/energy-parts"
MAX_RECORDS: Final = 1000
"""Maximum number of record ids in a request."""
_MAX_ID: Final = 256


def request_body(record_ids: Sequence[str]) -> dict[str, Any]:
    """Return the body of a request.

    Args:
        record_ids: for each job or step, the id of one of its records.
    """
    return {"record_ids": list(record_ids)}


def read_record_ids(body: Mapping[str, Any]) -> list[str]:
    """Return the record ids in the body of a request.

    Raises:
        UsageError: the body is malformed.
    """
    for key in body:
        if key != "record_ids":
            raise UsageError(f"unknown key '{shown(str(key))}'")
    ids = body.get("record_ids")
    if not isinstance(ids, list) or len(ids) > MAX_RECORDS:
        raise UsageError(f"'record_ids' is not a list of at most {MAX_RECORDS}")
    if not all(is_name(one, _MAX_ID) for one in ids):
        what = f"printable text of at most {_MAX_ID} characters"
        raise UsageError(f"'record_ids' has an element that is not a {what}")
    return ids


def read_response(response: Mapping[str, Any]) -> dict[str, list[KnownPart]]:
    """Return the energy by time (start, end, joules) in a response, by record id.

    Raises:
        UnavailableError: the response is malformed.
    """
    try:
        return {
            str(record_id): [(float(start), float(end), float(joules)) for start, end, joules in parts]
            for record_id, parts in response["parts"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        why = "the controller's response about energy by time is malformed"
        raise UnavailableError("carbon and price", why, "is the controller of the same release?") from None
