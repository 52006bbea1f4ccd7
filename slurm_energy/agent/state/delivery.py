"""Delivery of spooled energy records to the controller until the controller has confirmed each of them.

The controller accepts a record, rejects it or requests a retry. A rejected record will never be accepted
unless the record is changed. A record to be retried may be accepted later or by a newer controller. Rejected
records are kept. Rejected records are sent again when another release of the controller responds. Records to
be retried wait in the spool and delay no other record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.spooled_record import SpooledRecord
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import EnergyError, ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.protocol.controller_client import ControllerClient

log = logging.getLogger(__name__)

_SUBJECT, _RETRIED = "delivery", "records for a newer controller or a later time"
_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 60.0
_MAX_SWITCH_WAIT_S = 10.0
"""Maximum pause after a failure if the cluster has several controllers, of which another soon takes over."""
_TIMEOUT_S = 5.0
_TOTAL_TIMEOUT_S = 60.0
_MAX_RESPONSE_BYTES = 1 << 20
_BATCH_BYTES = 4_000_000
_BATCH_ITEMS = 200
_RESEND_PAUSE_S = 600.0
"""Minimum pause between resends, so that two releases behind one address do not cause endless resends."""
_UNKNOWN_RELEASE = "unknown"
_REQUEST_INTERVAL_S = 900.0
"""Interval of requests for the controller's release while only rejected records are left."""


@dataclass(frozen=True, slots=True)
class DeliveryRoute:
    """HTTP route of the controller for one kind of spooled items.

    The items are either records of jobs or periods of the node.

    Attributes:
        path: path of the route.
        key: key under which the request contains the content of an item.
        plural: plural noun for the items in log messages.
        spread_s: maximum of the random delay of a delivery in seconds. The delay is needed where all nodes
            have new items at the same time, for example at the end of a period.
    """

    path: str
    key: str
    plural: str
    spread_s: float = 0.0


RECORD_ROUTE: Final = DeliveryRoute("/v1/records", "record", "records")
PERIOD_ROUTE: Final = DeliveryRoute("/v1/periods", "period", "periods of the node's energy", 30.0)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Response of the controller to one delivery.

    The results are keyed by the index of the record in the request.

    Attributes:
        accepted: records that were accepted now or earlier.
        rejected: rejected records, each with the reason.
        attachments: accepted records whose trace or observation was rejected, each with the reason.
        retried: records to be sent again later, each with the reason.
    """

    accepted: frozenset[int] = frozenset()
    rejected: Mapping[int, str] = field(default_factory=dict)
    attachments: Mapping[int, str] = field(default_factory=dict)
    retried: Mapping[int, str] = field(default_factory=dict)


def parse_delivery_response(items: Sequence[SpooledRecord], response: Mapping[str, Any]) -> DeliveryResult:
    """Parse the controller's response to a delivery of records.

    The response names the records that the controller accepted or rejected. If it does not name a record,
    this record must be sent again.

    Args:
        items: the sent records.
        response: JSON object of the controller's response.

    Raises:
        UnavailableError: the response names none of the records.
    """
    accepted_ids = set(_strings(response.get("accepted")))
    accepted = frozenset(i for i, item in enumerate(items) if item.record_id in accepted_ids)
    rejected = _reasons(items, response, "rejected")
    attachments = {
        **{
            index: f"its observation: {why}"
            for index, why in _reasons(items, response, "observations_rejected").items()
        },
        **{index: f"its trace: {why}" for index, why in _reasons(items, response, "traces_rejected").items()},
    }
    retried = _reasons(items, response, "retry")
    if not (accepted or rejected or retried):
        raise UnavailableError("controller", "its response names none of the records")
    unnamed = set(range(len(items))) - accepted - rejected.keys() - retried.keys()
    return DeliveryResult(
        accepted, rejected, attachments, retried | dict.fromkeys(unnamed, "not named in the response")
    )


def _is_about_the_connection(error: EnergyError) -> bool:
    """Return whether a failed delivery was caused by the connection or a missing permission.

    Otherwise the error concerns the delivered records themselves.
    """
    return isinstance(error, UnavailableError | ForbiddenError | NotFoundError)


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _reasons(items: Sequence[SpooledRecord], response: Mapping[str, Any], key: str) -> dict[int, str]:
    """Return the reasons that the controller's response gives for records, by index in the request.

    Args:
        items: the records of the request, in order.
        response: the controller's response.
        key: name of a list in the response. Each entry of the list names its record by index or by record
            id.
    """
    entries = response.get(key)
    places = {item.record_id: i for i, item in enumerate(items)}
    reasons = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        index = entry.get("index")
        if not isinstance(index, int) or not 0 <= index < len(items):
            record_id = entry.get("record_id")
            index = places.get(record_id) if isinstance(record_id, str) else None
        if index is not None:
            reasons[index] = str(entry.get("error"))
    return reasons


class RecordDelivery:
    """The background task that delivers the spooled records to the controller.

    Args:
        spool: spool that contains the records to deliver.
        cluster: configuration with the address of the controller.
        node: function that returns Slurm's name of this node.
        work: runs a function in the worker thread, which is the only thread that uses the spool.
        route: route of the controller to which the records are sent. A controller of an older release
            does not have the route of periods. The periods then stay in the spool until the controller is
            upgraded.
        spread_s: function that returns a maximum random delay in seconds, as requested by the controller.
            Random delays spread the requests of many nodes over time. A route has a maximum random delay
            of its own. The larger of both values is used. If the delay of the route is 0, there is no
            delay.
    """

    def __init__(
        self,
        spool: Spool,
        cluster: ClusterConfig,
        node: Callable[[], str],
        work: Callable[..., Awaitable[Any]],
        route: DeliveryRoute = RECORD_ROUTE,
        spread_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.cluster = cluster
        self._route = route
        self._spread_s = spread_s
        self._spool = spool
        self._node = node
        self._work = work
        self._wake = asyncio.Event()
        self._failures = RepeatedFailureLog(log)
        self._release = _UNKNOWN_RELEASE
        self._resent_for = _UNKNOWN_RELEASE
        self._resent_at: float | None = None
        self._requested_at = -math.inf

    def wake(self) -> None:
        """Tell the delivery task that there is a new record to send.

        After a failed delivery the task pauses. A new record does not shorten this pause.
        """
        self._wake.set()

    async def run(self) -> None:
        """Deliver records until the task is cancelled."""
        wait_s = _FIRST_WAIT_S
        while True:
            self._wake.clear()
            try:
                delivered = await self._deliver_some()
            except EnergyError as error:
                self._failures.report(_SUBJECT, f"{self._route.plural} stay in the spool: {error}")
                await asyncio.sleep(wait_s * random.uniform(0.7, 1.0))  # the nodes spread over time
                wait_s = min(2 * wait_s, self._max_wait_s)
                continue
            except OSError as error:
                self._failures.report(_SUBJECT, f"the spool cannot be read: {error}")
                await asyncio.sleep(_MAX_WAIT_S)
                continue
            wait_s = _FIRST_WAIT_S
            if not delivered:
                pause_s = await self._work(self._pause_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause_s)
                    await asyncio.sleep(random.uniform(0.0, self._max_delay_s))

    @property
    def _max_delay_s(self) -> float:
        """Return the maximum of the random delay of a delivery in seconds."""
        spread_s = self._route.spread_s
        return max(spread_s, self._spread_s()) if spread_s > 0 else 0.0

    @property
    def _max_wait_s(self) -> float:
        return _MAX_SWITCH_WAIT_S if len(self.cluster.controller_url) > 1 else _MAX_WAIT_S

    def _pause_s(self) -> float | None:
        """Return the seconds to wait for a new record before the next request; None to wait without limit."""
        now = time.monotonic()
        pauses = [self._spool.deferred.pause_s(now)]
        if self._spool.rejected.count():
            pauses.append(max(0.0, self._requested_at + _REQUEST_INTERVAL_S - now))
        due = [pause for pause in pauses if pause is not None]
        return min(due) if due else None

    async def _deliver_some(self) -> bool:
        """Deliver one batch of records.

        Return False if there was nothing to send.
        """
        now = time.monotonic()
        items: list[SpooledRecord] = await self._work(self._spool.items, _BATCH_BYTES, _BATCH_ITEMS, now)
        rejected = await self._work(self._spool.rejected.count)
        if not items and not (rejected and now >= self._requested_at + _REQUEST_INTERVAL_S):
            return False
        client = self._client()
        try:
            response = await self._post(client, items)
        except EnergyError as error:
            if not items or _is_about_the_connection(error):
                raise
            await self._deliver_one_by_one(client, items, error)
            return True
        await self._settle(items, response)
        self._failures.clear(_SUBJECT, "the controller answers again")
        return True

    def _client(self) -> ControllerClient:
        cluster = self.cluster
        return ControllerClient(
            *(cluster.controller_url, cluster.munge_socket, _TIMEOUT_S, cluster.controller_users),
            total_timeout_s=_TOTAL_TIMEOUT_S,
            max_response_bytes=_MAX_RESPONSE_BYTES,
        )

    async def _deliver_one_by_one(
        self, client: ControllerClient, items: list[SpooledRecord], error: EnergyError
    ) -> None:
        """Deliver the records of a failed request one by one.

        In this way a bad record delays no other record.

        A record that the controller refuses for its size or form is rejected. A record for which the
        controller reports another error is retried later.

        Args:
            client: connection to the controller.
            items: the records of the failed request.
            error: the error of that request.
        """
        for item in items:
            try:
                if len(items) > 1:
                    await self._settle([item], await self._post(client, [item]))
                    continue
            except EnergyError as own_error:
                if _is_about_the_connection(own_error):
                    raise
                error = own_error
            if not isinstance(error, UsageError):
                await self._work(self._spool.defer, item.name, str(error), time.monotonic())
            elif not item.has_attachments or not await self._deliver_without_attachments(client, item):
                await self._reject(item, str(error))

    async def _deliver_without_attachments(self, client: ControllerClient, item: SpooledRecord) -> bool:
        """Deliver a record without its trace and observation.

        The controller may have refused only these attachments.

        Returns:
            False if the controller refuses the record even without attachments.
        """
        try:
            response = await self._post(client, [SpooledRecord(item.name, item.record, None)])
            outcome = parse_delivery_response([item], response)
        except UsageError:
            return False
        if outcome.accepted:
            why = "the controller refused its trace or observation; the record itself is delivered"
            await self._reject(item, why)
        else:
            await self._settle([item], response)
        return True

    async def _post(self, client: ControllerClient, items: list[SpooledRecord]) -> dict[str, Any]:
        spooled, rejected = await self._work(self._counts)
        body = {
            "items": [item.to_json(self._route.key) for item in items],
            "node": self._node(),
            "spooled": max(0, spooled - len(items)),
            "rejected": rejected,
        }
        try:
            response = await asyncio.to_thread(client.post, self._route.path, body)
        except asyncio.CancelledError:
            client.cancel()  # otherwise the thread, and the stop of senergyd, would wait for the controller
            raise
        self._requested_at = time.monotonic()
        await self._note_release(response)
        return response

    def _counts(self) -> tuple[int, int]:
        return self._spool.count(), self._spool.rejected.count()

    async def _note_release(self, response: Mapping[str, Any]) -> None:
        """Store the controller's release, and resend the records that another release has rejected."""
        version, schema = (str(response.get(key))[:40] for key in ("version", "schema"))
        release = f"{version} (schema {schema})"
        now, self._release = time.monotonic(), release
        if release == self._resent_for:
            return
        if self._resent_at is not None and now < self._resent_at + _RESEND_PAUSE_S:
            return
        if self._resent_for != _UNKNOWN_RELEASE:
            self._resent_at = now
        self._resent_for = release
        count = await self._work(self._spool.resend, None, release)
        if count:
            what = self._route.plural
            log.info("%d rejected %s are resent: the controller is now %s", count, what, release)
            self.wake()

    async def _settle(self, items: list[SpooledRecord], response: dict[str, Any]) -> None:
        if not items:
            return
        outcome = parse_delivery_response(items, response)
        if await self._work(self._settle_spool, items, outcome):
            self._failures.report(_RETRIED, f"stay in the spool: {self._spool.deferred.reason}")
        else:
            self._failures.clear(_RETRIED, "none is left")

    def _settle_spool(self, items: list[SpooledRecord], outcome: DeliveryResult) -> int:
        """Process the controller's response to a delivery of records from the spool.

        The spool is the directory of records that the controller has not confirmed yet. Accepted records are
        removed from it. Rejected records are moved aside. All other records are deferred, that is, sent again
        later.

        Returns:
            The number of deferred records.
        """
        for index, item in enumerate(items):
            if index in outcome.accepted and index in outcome.attachments and item.has_attachments:
                reason = f"delivered, but for {outcome.attachments[index]}"
                self._spool.reject(item.name, reason, self._release)
            elif index in outcome.accepted:
                self._spool.remove(item.name)
            elif index in outcome.rejected:
                self._spool.reject(item.name, outcome.rejected[index], self._release)
            else:
                self._spool.defer(item.name, outcome.retried[index], time.monotonic())
        return len(self._spool.deferred)

    async def _reject(self, item: SpooledRecord, reason: str) -> None:
        await self._work(self._spool.reject, item.name, reason, self._release)
