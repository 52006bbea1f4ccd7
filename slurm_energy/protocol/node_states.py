"""State of a node, which its agent sends to senergyctld together with live reports.

`senergy doctor --cluster` checks the cluster from these states. A state has two parts. `facts` change
rarely, for example releases, plugins, sources and configuration. Facts are sent when they change, when
senergyctld requests them, and every `FACTS_INTERVAL_S` seconds. `counts` are a few numbers that every report
contains. senergyctld stores both parts without interpreting them, so that a node of a newer release can send
further keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number, shown

NODES_PATH: Final = "/v1/nodes"
FACTS_INTERVAL_S: Final = 600.0
MAX_FACTS_BYTES: Final = 8 << 10
_MAX_FACTS_DEPTH: Final = 8
"""Maximum nesting depth, which every reader of the facts must be able to parse."""
_MAX_COUNTS: Final = 16
_MAX_KEY: Final = 32


def facts_text(data: Any) -> str:
    """Return the facts of a node as canonical JSON.

    Equal facts of several nodes then have equal texts.

    Raises:
        UsageError: the facts are not an object, are nested too deeply, or are longer than `MAX_FACTS_BYTES`.
    """
    if not isinstance(data, dict):
        raise UsageError("live report: 'facts' is not an object")
    if _is_deeper(data, _MAX_FACTS_DEPTH):
        raise UsageError(f"live report: 'facts' is nested more than {_MAX_FACTS_DEPTH} deep")
    try:
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        raise UsageError("live report: 'facts' cannot be stored") from None
    if len(text) > MAX_FACTS_BYTES:
        raise UsageError(f"live report: 'facts' has more than {MAX_FACTS_BYTES} bytes")
    return text


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested more than `levels` deep."""
    if not isinstance(value, (dict, list)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def check_counts(data: Any) -> Mapping[str, float]:
    """Check the field `counts` of a live report of a node, and return it.

    A live report states the present power of the node and the energy of its running jobs so far.

    Raises:
        UsageError: the field is not an object with a few numbers.
    """
    if not isinstance(data, dict) or len(data) > _MAX_COUNTS:
        raise UsageError(f"live report: 'counts' is not an object of at most {_MAX_COUNTS} numbers")
    for name, count in data.items():
        if len(name) > _MAX_KEY or not is_number(count):
            raise UsageError(f"live report: bad count {shown(name)}")
    return data
