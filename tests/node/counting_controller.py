"""A stand-in for the controller, for tests of the agent.

It accepts records and periods, counts the deliveries of each record, and answers the agent's polls with
decisions about power.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from slurm_energy.agent.state.delivery import PERIOD_ROUTE
from slurm_energy.budget.messages import BUDGET_PATH, NodeDecision, NodePoll
from slurm_energy.node_period import NodePeriod
from slurm_energy.records import EnergyRecord


class CountingController:
    """Controller that listens on a loopback port from construction to `close` and counts deliveries.

    Attributes:
        records: the last delivered record for each record id.
        deliveries: number of deliveries by record id.
        available: while cleared, each request is answered with 503 and nothing is accepted.
        decision: response to the polls about power. If None, a poll is answered with 404.
        polls: polls about power so far; the list is emptied by the test.
    """

    def __init__(self) -> None:
        self.records: dict[str, EnergyRecord] = {}
        self.deliveries: dict[str, int] = {}
        self.available = threading.Event()
        self.available.set()
        self.decision: NodeDecision | None = None
        self.polls: list[NodePoll] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not outer.available.is_set():
                    self.send_error(503)
                    return
                if self.path == BUDGET_PATH:
                    data = outer.decide(body)
                elif self.path == PERIOD_ROUTE.path:
                    data = {
                        "accepted": [NodePeriod.from_json(item["period"]).period_id for item in body["items"]]
                    }
                else:
                    data = {"accepted": outer.take(body["items"])}
                answer = json.dumps({**data, "proof": ""}).encode()
                self.send_response(200 if data else 404)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: Any) -> None:
                return

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_arguments: Any) -> None:
                """Ignore an agent that dies during a response."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def decide(self, body: dict[str, Any]) -> dict[str, Any]:
        self.polls.append(NodePoll.from_json(body))
        decision = self.decision
        return {} if decision is None else decision.to_json()

    def take(self, items: list[dict[str, Any]]) -> list[str]:
        ids = []
        for item in items:
            record = EnergyRecord.from_json(item["record"])
            self.records[record.record_id] = record
            self.deliveries[record.record_id] = self.deliveries.get(record.record_id, 0) + 1
            ids.append(record.record_id)
        return ids

    def of_job(self, job_id: int, restart_count: int = 0) -> list[EnergyRecord]:
        """Return all records of a run of a job, including its steps."""
        found = list(self.records.values())
        return [r for r in found if (r.job_id, r.restart_count) == (job_id, restart_count)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
