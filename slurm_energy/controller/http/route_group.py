"""Groups of the controller's HTTP routes; each group serves one subject.

The handlers of the routes receive only the parameters of the request and the rights of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.controller.http.authorization import Rights

Inquiry = Callable[[dict[str, str], Rights], Awaitable[Mapping[str, Any]]]
"""Answers an inquiry from its parameters.

The parameters are those of `GET path`, or the JSON body of `POST path/search`.
"""

Change = Callable[[dict[str, Any], Rights], Awaitable[Mapping[str, Any]]]
"""Carries out a POST request, whose body is a JSON object."""


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """HTTP handlers by path, grouped by the cost and the effect of their requests.

    Attributes:
        light: inquiries that cost little.
        costly: inquiries that read much data; see "Order of service" in docs/reference/protocol.md.
        changes: requests that change something.
        costly_changes: requests that change something and read much data.
    """

    light: Mapping[str, Inquiry] = field(default_factory=dict)
    costly: Mapping[str, Inquiry] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    costly_changes: Mapping[str, Change] = field(default_factory=dict)
