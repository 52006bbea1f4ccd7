"""Storage of observations of jobs in the database.

An observation contains the sampled signals and reported steps of one job on one node. It is stored as
delivered, in compressed form. Without compression, its repetitive text would fill the database.
docs/reference/protocol.md specifies the format of observations. Only the size and the outer form are checked
here. Parts of an observation come from users' programs. Every reader therefore checks it completely
(`diagnosis.json_codec`).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, select

from slurm_energy.accounting.schema.observation_tables import observations
from slurm_energy.accounting.schema.tables import records
from slurm_energy.errors import UsageError

MAX_BYTES: Final = 8_000_000
"""Maximum size of an observation as JSON."""
_MAX_KEYS: Final = 32
_FAST: Final = 1
"""Level of compression. A fast level suffices: signals are compressed already, and other repetitive text
shrinks at any level.
"""


def read_observation(raw: Any, node: str) -> str | None:
    """Return the compressed text of a delivered observation, for storage. None if there is no observation.

    Args:
        raw: the observation as delivered.
        node: node of the record to which the observation belongs.

    Raises:
        UsageError: `raw` is no observation, is too large, or is about another node.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping) or len(raw) > _MAX_KEYS:
        raise UsageError(f"observation: not a JSON object of at most {_MAX_KEYS} keys")
    if raw.get("node") != node:
        raise UsageError("observation: belongs to another node than its record")
    try:
        body = json.dumps(raw, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UsageError("observation: cannot be stored as JSON", str(error)[:120]) from None
    if len(body) > MAX_BYTES:
        raise UsageError("observation: too long", f"{len(body)} bytes, more than {MAX_BYTES}")
    return base64.b64encode(zlib.compress(body.encode(), _FAST)).decode()


def _unpacked(body: str) -> str:
    return zlib.decompress(base64.b64decode(body)).decode()


def observations_json(connection: Connection, ids: Sequence[int]) -> list[str]:
    """Return the observations that belong to energy records as JSON objects.

    An observation contains the sampled signals and reported steps of one job on one node. The key `record`
    of each object holds the keys that identify the energy record.

    Args:
        connection: connection to the database.
        ids: row ids of records; records without observation are left out.
    """
    keys = (records.c.cluster, records.c.job_id, records.c.restart_count, records.c.start, records.c.end)
    query = (
        select(records.c.id, records.c.record_id, *keys, observations.c.body)
        .join_from(observations, records, observations.c.record == records.c.id)
        .where(observations.c.record.in_(ids))
    )
    texts = {}
    for row_id, record_id, *values, body in connection.execute(query):
        head = {"record_id": record_id, **{key.name: value for key, value in zip(keys, values, strict=True)}}
        # The observation is a JSON object with at least one key; the key replaces its closing brace.
        texts[row_id] = f'{_unpacked(body)[:-1]},"record":{json.dumps(head)}}}'
    return [texts[row_id] for row_id in ids if row_id in texts]
