"""Routes of the HTTP interface: permissions and responses. No SQL and no Slurm command here."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from aiohttp import web

from slurm_energy import __version__
from slurm_energy.accounting.records import record_queries
from slurm_energy.accounting.records.record_selection import RecordSelection
from slurm_energy.budget.messages import BUDGET_PATH
from slurm_energy.config import Config
from slurm_energy.controller.budgets.routes import BudgetRoutes
from slurm_energy.controller.diagnosis.adjustment_routes import AdjustmentRoutes
from slurm_energy.controller.http.authorization import PrivilegedUsers, RightsResolver, RoleCache
from slurm_energy.controller.http.connection_admission import ConnectionAdmission
from slurm_energy.controller.http.dispatcher import (
    CallerHandler,
    RequestDispatcher,
    ResponseContent,
    Route,
    explain_errors,
    one_request_per_connection,
)
from slurm_energy.controller.http.identity import Caller
from slurm_energy.controller.http.job_routes import JobRoutes, RecordReader, find_selected
from slurm_energy.controller.http.name_check import NameCheck
from slurm_energy.controller.http.node_hosts import NodeHosts, Sender
from slurm_energy.controller.http.record_visibility import restricted_selection, visible_status
from slurm_energy.controller.http.request_limiter import RequestLimiter
from slurm_energy.controller.http.request_limits import RequestLimits
from slurm_energy.controller.http.responses import Pieces
from slurm_energy.controller.http.route_group import Change, Inquiry, RouteGroup
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.controller.policy_file import policies_answer
from slurm_energy.controller.queue import priority_routes
from slurm_energy.controller.queue.priority_loop import PriorityLoop
from slurm_energy.controller.records import energy_parts_route
from slurm_energy.controller.records.deliveries import DeliveryReceiver, read_object
from slurm_energy.controller.records.period_deliveries import PERIODS_PATH, PeriodReceiver
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning import untuned_routes
from slurm_energy.controller.tuning.advisor import TuningAdvisor
from slurm_energy.controller.tuning.groups import TuningGroups, read_poll
from slurm_energy.controller.tuning.history_cache import HistoryCache, read_requests
from slurm_energy.controller.tuning.routes import TuningRoutes
from slurm_energy.errors import (
    UnavailableError,
    UsageError,
)
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.oracle.prediction import PredictionRequest
from slurm_energy.protocol import budget_requests
from slurm_energy.protocol.adjustment_requests import VALUES_PATH
from slurm_energy.protocol.energy_parts import PARTS_PATH
from slurm_energy.protocol.live_reports import LIVE_PATH, MAX_LIVE_BYTES, RUNNING_PATH
from slurm_energy.protocol.observation_requests import OBSERVATION_ROUTE
from slurm_energy.protocol.tuning_advice import ADVICE_PATH
from slurm_energy.protocol.untuned_runs import UNTUNED_PATH
from slurm_energy.safe_text import is_storable
from slurm_energy.slurm.roles import read_roles
from slurm_energy.tuning.group.messages import GROUP_PATH

MAX_DELIVERY_BYTES: Final = 16 << 20
MAX_PREDICTION_BYTES: Final = 1 << 20
MAX_SEARCH_BYTES: Final = 256 << 10
MAX_CHANGE_BYTES: Final = 16 << 10
MAX_GROUP_BYTES: Final = 64 << 10
MAX_BUDGET_POLL_BYTES: Final = 1 << 20
_STATISTICS_AGE_S: Final = 1.0
_TRACES_CHUNK: Final = 4  # responses about jobs contain traces of up to megabytes each
Receiver = Callable[[bytes, Sender], Awaitable[dict[str, Any]]]
log = logging.getLogger(__name__)


class ControllerServer:
    """HTTP server of senergyctld.

    Attributes:
        config: configuration. A reload replaces the object; it is never changed in place.
        access: privileged users. A reload replaces the object.

    The argument `status` is a function that returns additional entries for the status page. The argument
    `permit` is a function that raises an error while no request may be answered.
    """

    def __init__(
        self,
        config: Config,
        access: PrivilegedUsers,
        store: Store,
        failures: RepeatedFailureLog,
        status: Callable[[], dict[str, Any]],
        history: HistoryCache | None = None,
        priority: PriorityLoop | None = None,
        hosts: NodeHosts | None = None,
        advisor: TuningAdvisor | None = None,
        budget: BudgetRoutes | None = None,
        groups: Sequence[RouteGroup] = (),
        live: LiveReports | None = None,
        permit: Callable[[], None] = lambda: None,
        adjustments: AdjustmentRoutes | None = None,
    ) -> None:
        self.config = config
        self.access = access
        self._store = store
        self._failures = failures
        self._status = status
        self._history = history
        self._priority = priority
        self._started = time.time()
        self._deliveries = DeliveryReceiver(lambda: self.config, store, failures, hosts)
        self._live = live or LiveReports(lambda: self.config, hosts)
        self._periods = PeriodReceiver(lambda: self.config, store, failures, hosts)
        self._records = RecordReader(store)
        self._jobs = JobRoutes(self._records)
        self._names = NameCheck(lambda: self.config, store)
        self._tuning = TuningRoutes(store, advisor)
        self._adjustments = adjustments
        self._route_groups = (
            self._tuning.routes,
            *([] if adjustments is None else [adjustments.routes]),
            *groups,
        )
        self._groups = TuningGroups(lambda: self.config, advisor)
        self._budget = budget or BudgetRoutes(lambda: self.config, None, store, hosts)
        self._statistics: tuple[float, asyncio.Task[dict[str, Any]]] | None = None
        self.admission = ConnectionAdmission()
        self.roles = RoleCache(None, failures)
        self.follow_roles(config.controller.slurm_roles)
        resolver = RightsResolver(lambda: self.access, lambda: self.roles.current)
        self._dispatcher = RequestDispatcher(
            lambda: (self.config, self.access), resolver.rights_of, failures, self.admission, permit
        )

    def application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        explain = explain_errors(self._dispatcher.errors)
        application = web.Application(client_max_size=MAX_DELIVERY_BYTES, middlewares=[explain])
        application.on_response_prepare.append(one_request_per_connection)
        limits = RequestLimits()
        gets = self._inquiries(limits) | self._agent_inquiries(limits)
        posts = self._posted_inquiries(limits) | self._agent_reports(limits)
        for group in self._route_groups:
            for limiter, inquiries in ((limits.light, group.light), (limits.costly, group.costly)):
                for path, ask in inquiries.items():
                    gets[path] = Route(self._asking(ask), limiter)
                    posts[f"{path}/search"] = Route(self._asking(ask), limiter, MAX_SEARCH_BYTES)
            for limiter, changes in ((limits.light, group.changes), (limits.costly, group.costly_changes)):
                for path, change in changes.items():
                    posts[path] = Route(self._changing(change), limiter, MAX_CHANGE_BYTES)
        for path, route in gets.items():
            application.router.add_get(path, self._dispatcher.handler(route), allow_head=False)
        for path, route in posts.items():
            application.router.add_post(path, self._dispatcher.handler(route))
        return application

    def _inquiries(self, limits: RequestLimits) -> dict[str, Route]:
        return {
            "/v1/records": Route(self._get_records, limits.costly),
            "/v1/jobs/{id}": Route(self._jobs.job, limits.costly),
            OBSERVATION_ROUTE: Route(self._jobs.observation, limits.costly),
            "/v1/policies": Route(self._get_policies, limits.light),
            "/v1/priority": Route(self._get_priority, limits.costly),
            "/v1/shares": Route(self._get_shares, limits.costly),
            "/v1/status": Route(self._get_status, limits.light),
            RUNNING_PATH: Route(self._get_running, limits.light),
            budget_requests.STATUS_PATH: Route(self._asking(self._budget.show), limits.light),
            budget_requests.HISTORY_PATH: Route(self._asking(self._budget.history), limits.costly),
            budget_requests.EXPLAIN_PATH: Route(self._asking(self._budget.explain), limits.costly),
        }

    def _agent_inquiries(self, limits: RequestLimits) -> dict[str, Route]:
        return {
            ADVICE_PATH: Route(self._get_advice, limits.advice, for_agents=True),
            VALUES_PATH: Route(self._get_adjusted_values, limits.advice, for_agents=True),
        }

    def _posted_inquiries(self, limits: RequestLimits) -> dict[str, Route]:
        """Return the routes for POST requests of users: large inquiries, and changes.

        The parameters of a large inquiry are too long for a request line.
        """
        return {
            "/v1/records/search": Route(self._get_records, limits.costly, MAX_SEARCH_BYTES),
            "/v1/priority/search": Route(self._get_priority, limits.costly, MAX_SEARCH_BYTES),
            f"{RUNNING_PATH}/search": Route(self._get_running, limits.light, MAX_SEARCH_BYTES),
            "/v1/predict": Route(self._post_predict, limits.costly, MAX_PREDICTION_BYTES),
            UNTUNED_PATH: Route(self._post_untuned_runs, limits.costly, MAX_PREDICTION_BYTES),
            PARTS_PATH: Route(self._post_energy_parts, limits.costly, MAX_PREDICTION_BYTES),
            budget_requests.SET_PATH: Route(self._changing(self._budget.set), limits.light, MAX_CHANGE_BYTES),
        }

    def _agent_reports(self, limits: RequestLimits) -> dict[str, Route]:
        reports: dict[str, tuple[CallerHandler, RequestLimiter, int]] = {
            "/v1/records": (self._post_records, limits.ingest, MAX_DELIVERY_BYTES),
            PERIODS_PATH: (self._reporting(self._periods.receive), limits.ingest, MAX_DELIVERY_BYTES),
            LIVE_PATH: (self._reporting(self._live.receive), limits.live, MAX_LIVE_BYTES),
            GROUP_PATH: (
                self._reporting(lambda body, sender: self._groups.poll(read_poll(body), sender)),
                *(limits.groups, MAX_GROUP_BYTES),
            ),
            BUDGET_PATH: (
                self._reporting(lambda body, sender: self._budget.poll(read_poll(body), sender)),
                *(limits.power, MAX_BUDGET_POLL_BYTES),
            ),
        }
        return {path: Route(*report, for_agents=True) for path, report in reports.items()}

    def follow_roles(self, follow: bool) -> None:
        """Set whether user roles in Slurm's database give users rights in senergyctld.

        The loop that reads the roles is woken, so that a change has an effect soon.
        """
        self.roles.read = read_roles if follow else None
        self.roles.refresh()

    async def _post_records(self, request: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        answer = await self._deliveries.receive(body, _sender(request, caller))
        self._statistics = None
        return answer

    async def _post_predict(self, _: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        operator = caller.rights.everything

        def requests() -> list[PredictionRequest]:
            return read_requests(read_object(body), caller.rights.name, operator=operator)

        to_predict = await asyncio.to_thread(requests)
        if self._history is None:
            raise UnavailableError("history", "this controller has no history")
        predictions = await self._history.predict(to_predict, not operator)
        return {"scope": "all" if operator else "own", "predictions": predictions}

    async def _post_untuned_runs(self, _: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        return await untuned_routes.find(body, caller.rights, functools.partial(self._records.read, caller))

    async def _post_energy_parts(self, _: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        read = functools.partial(self._records.read, caller)
        return await energy_parts_route.find(body, caller.rights, read)

    async def _get_records(self, request: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        requested = RecordSelection.from_query(await _query(request, body))
        selection = await asyncio.to_thread(restricted_selection, caller, requested)
        ids = await self._records.read(caller, find_selected, selection)
        if selection.users and not selection.jobs and selection.visible is None:
            await self._store.read(record_queries.refuse_unknown_users, selection)
        if not selection.jobs:
            by_operator = caller.rights.everything
            await self._names.refuse_unknown(
                selection.accounts, selection.partitions, by_operator=by_operator
            )
        head = f'{json.dumps(caller.rights.described())[:-1]},"records":['
        return self._records.records(caller, ids, head, record_queries.CHUNK, False)

    async def _get_priority(self, request: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        query = await _query(request, body)
        ask = functools.partial(priority_routes.jobs, self._priority_loop(), query, caller.rights)
        names = priority_routes.names_without_jobs(self._priority_loop(), query)
        await self._names.refuse_unknown(*names, by_operator=caller.rights.everything)
        return _piecewise_in_threads(await asyncio.to_thread(ask))

    async def _get_shares(self, _: web.Request, caller: Caller, __: bytes) -> ResponseContent:
        return await asyncio.to_thread(priority_routes.shares, self._priority_loop(), caller.rights)

    def _priority_loop(self) -> PriorityLoop:
        if self._priority is None:
            raise UnavailableError("priority", "this controller does not rank the queue")
        return self._priority

    async def _get_running(self, request: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        return _piecewise_in_threads(await self._live.running(await _query(request, body), caller.rights))

    async def _get_advice(self, request: web.Request, caller: Caller, body: bytes) -> ResponseContent:
        return await self._tuning.advise(await _query(request, body), _sender(request, caller))

    async def _get_adjusted_values(
        self, request: web.Request, caller: Caller, body: bytes
    ) -> ResponseContent:
        if self._adjustments is None:
            raise UnavailableError("adjustments", "this controller gives none")
        return await self._adjustments.values(await _query(request, body), _sender(request, caller))

    @staticmethod
    def _reporting(receive: Receiver) -> CallerHandler:
        """Return an HTTP handler for reports of agents.

        The handler calls `receive` with the body of the report and its sender.
        """

        async def handler(request: web.Request, caller: Caller, body: bytes) -> ResponseContent:
            return await receive(body, _sender(request, caller))

        return handler

    @staticmethod
    def _asking(ask: Inquiry) -> CallerHandler:
        """Return the HTTP handler that calls `ask` with the query parameters and the caller's rights."""

        async def handler(request: web.Request, caller: Caller, body: bytes) -> ResponseContent:
            return dict(await ask(await _query(request, body), caller.rights))

        return handler

    @staticmethod
    def _changing(change: Change) -> CallerHandler:
        """Return the handler of a request that changes something.

        The handler calls `change` with the JSON body and the caller's rights, and returns the response of
        `change`.
        """

        async def handler(_: web.Request, caller: Caller, body: bytes) -> ResponseContent:
            return dict(await change(await asyncio.to_thread(read_object, body), caller.rights))

        return handler

    async def _get_policies(self, _: web.Request, caller: Caller, __: bytes) -> ResponseContent:
        return policies_answer(self.config, with_node_power=caller.rights.everything)

    async def _get_status(self, _: web.Request, caller: Caller, __: bytes) -> ResponseContent:
        figures = await self._current_statistics()
        nodes = [node | self._deliveries.pending_counts_of(node["node"]) for node in figures["nodes"]]
        return {
            "version": __version__,
            "cluster": self.config.cluster.name,
            "started": self._started,
            "uptime_s": time.time() - self._started,
            "database": self._store.name,
            **figures,
            "nodes": nodes,
            **visible_status(self._status(), caller),
        }

    async def _current_statistics(self) -> dict[str, Any]:
        """Return statistics of the database; requests at the same time share one query."""
        now_s = time.monotonic()
        if self._statistics is None or (
            self._statistics[1].done() and now_s > self._statistics[0] + _STATISTICS_AGE_S
        ):
            self._statistics = now_s, asyncio.create_task(self._store.read(record_queries.database_figures))
        _, task = self._statistics
        try:
            return await asyncio.shield(task)
        except UnavailableError:
            self._statistics = None
            raise


async def _query(request: web.Request, body: bytes) -> dict[str, str]:
    """Return the query parameters, from the request line or from a JSON body.

    A JSON body is an object whose values are strings.
    """
    if request.method == "POST":
        query = await asyncio.to_thread(read_object, body)
        if not all(isinstance(value, str) for value in query.values()):
            raise UsageError("a parameter is not a string")
    else:
        query = dict(request.query)
        if len(query) != len(request.query):
            raise UsageError("a parameter is given twice", todo="write values as a comma list")
    if not all(is_storable(value) for value in query.values()):
        raise UsageError("a parameter is not text")
    return query


async def _piecewise_in_threads(pieces: Iterator[str]) -> Pieces:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


def _sender(request: web.Request, caller: Caller) -> Sender:
    own = request.get_extra_info("sockname")
    return Sender(request.remote, own[0] if isinstance(own, tuple) else None, caller.origin)
