"""Run senergyd and senergyctld of the release in PYTHONPATH, and record their outputs.

The script record_release.py starts this module: release_session.py CODE WORK TARGET
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from hardware_tree import Tree
from own_controller import reserved_port, running_munged, wait_for
from period_examples import period
from queue_files import snapshot
from store_examples import Accounting, item, job

import slurm_energy
from slurm_energy.accounting import engine
from slurm_energy.accounting.records import periods
from slurm_energy.accounting.schema import migrations
from slurm_energy.agent import daemon
from slurm_energy.budget.messages import NodeDecision
from slurm_energy.config import schema_document
from slurm_energy.devices.discovery import discover
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.priority import table_file
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.reports.trace import encode_trace
from slurm_energy_lab.database_servers import SERVERS

PACKAGES = ("intel-rapl:0", "intel-rapl:1")
GETS = (
    "/v1/status", "/v1/records?steps=1", "/v1/jobs/7", "/v1/running", "/v1/policies", "/v1/shares",
    "/v1/priority", "/v1/tuning", "/v1/budget?nodes=1&jobs=1", "/v1/quota", "/v1/quota/changes",
    "/v1/usage?edges=1000000000,4000000000&by=user", "/v1/grid?start=1000000000&end=1000003600",
)  # fmt: skip


class Session:
    """Test session that runs one release of slurm-energy: an emulated node with its controller.

    The session records each request to the controller, with its response.
    """

    def __init__(self, code: Path, work: Path, target: Path) -> None:
        self.code, self.work, self.target = code, work, target
        work.mkdir()
        work.chmod(0o755)
        self.socket_folder = Path(tempfile.mkdtemp(prefix="rs-"))
        self.socket = self.socket_folder / "agent.sock"
        self.tree = Tree(work / "node").cpus(4).cpufreq(4, "intel_pstate", "powersave").two_packages()
        self.requests: list[dict] = []
        self.agent_messages: list[dict] = []
        daemon.discover = lambda **_options: discover(self.tree.root)
        self._record_requests()

    def _record_requests(self) -> None:
        """Store every request to the controller with its response."""
        for method in ("get", "post"):
            plain = getattr(ControllerClient, method)

            def recorded(client, path, body=None, *, plain=plain, method=method):
                entry = {"method": method.upper(), "path": path, "body": body}
                self.requests.append(entry)
                try:
                    entry["response"] = plain(client, path, body)
                except EnergyError as error:
                    entry["error"] = {"type": type(error).__name__, "text": str(error)}
                    raise
                return entry["response"]

            setattr(ControllerClient, method, recorded)

    def configure(self, munge_socket: Path, port: int) -> None:
        user = os.getuid()
        self.file = self.work / "energy.toml"
        self.file.write_text(
            f'[cluster]\nname = "lab"\nmunge_socket = "{munge_socket}"\n'
            f'controller_url = "http://127.0.0.1:{port}"\ncontroller_users = ["{user}"]\n'
            f'[agent]\nsocket = "{self.socket}"\nstate_dir = "{self.work}/state"\nsampling_hz = 10.0\n'
            "live_report_s = 1.0\nperiod_s = 3600\n"
            f'[controller]\nlisten = "127.0.0.1:{port}"\ndatabase = "{self.work}/senergy.db"\n'
            f'policy_file = "{self.work}/policies"\nagent_users = ["{user}"]\noperators = ["{user}"]\n'
            '[budget]\nmode = "enforce"\nadmission = "off"\n[[budgets]]\nname = "site"\ncluster = true\n'
            'watts = 100000.0\n[policies.night]\nbase = "cap"\ncap_watts = 350\nusers = ["alice"]\n'
        )

    def use_power(self, seconds: float) -> None:
        """Advance the energy counters of the emulated CPU packages for `seconds`.

        The counters advance as if each package drew 100 W.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for zone in PACKAGES:
                path = f"sys/class/powercap/{zone}/energy_uj"
                counter = self.tree.root / path
                with counter.open("r+") as file:  # the driver keeps the file open, and never reads it empty
                    file.write(f"{int(counter.read_text()) + 5_000_000}\n")
            time.sleep(0.05)

    @contextlib.contextmanager
    def agent(self):
        """Run senergyd in a thread of this process."""
        loop = asyncio.new_event_loop()
        made = {}

        def serve():
            asyncio.set_event_loop(loop)
            made["daemon"] = daemon.AgentDaemon(daemon.load_config(str(self.file)), str(self.file))
            made["daemon"]._handle_signals = lambda: None
            loop.run_until_complete(made["daemon"].run())

        thread = threading.Thread(target=serve)
        thread.start()

        def answers():
            with contextlib.suppress(OSError):
                return self.ask({"op": "status"}, record=False)["ok"]

        wait_for(answers)
        try:
            yield made["daemon"]
        finally:
            loop.call_soon_threadsafe(made["daemon"]._stop.set)
            thread.join(60)

    def ask(self, message, *, record=True):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.socket))
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
        if record:
            self.agent_messages.append({"message": message, "answer": answer})
        return answer

    def env(self, job_id, **flags):
        return {
            "SLURM_JOB_ID": str(job_id), "SLURM_JOB_UID": "0", "SLURM_JOB_USER": "root",
            "SLURM_JOB_PARTITION": "cpu", "SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_NODELIST": "n1",
            "SLURMD_NODENAME": "n1", "SLURM_CLUSTER_NAME": "lab", "SLURM_JOB_RESTART_COUNT": "0",
            **{f"SPANK_ENERGY_{name.upper()}": value for name, value in flags.items()},
        }  # fmt: skip

    def run_jobs(self):
        """Run two jobs on an agent without a controller, and copy the agent's state at two times.

        The state is copied while the first job runs, and again after both jobs have ended and the agent has
        stopped.
        """
        with self.agent():
            self.ask({"op": "begin", "env": self.env(7, policy="cap", cap="250", tag="first")})
            step = {"op": "step", "event": "start", "job_id": 7, "step": "0", "pid": os.getpid()}
            self.ask({**step, "cpus": "0-3", "job_cpus": "0-3", "fingerprint": "9f" * 8})
            self.use_power(2.5)
            self.ask({"op": "progress", "job_id": 7, "process": "rank0", "units": 10, "total": 100})
            self.ask({"op": "set", "job_id": 7, "cap_watts": 220, "gpu_cap_watts": None})
            self.ask({"op": "energy", "job_id": 7, "fresh": True})
            self.ask({"op": "acct_gather_energy"})
            self.ask({"op": "status"})
            self.use_power(11.0)  # until a periodic checkpoint
            self.keep_folder(self.work / "state", "state-running")
            self.ask({**step, "event": "end"})
            self.ask({"op": "end", "env": self.env(7)})
            self.ask({"op": "begin", "env": self.env(8)})
            self.use_power(1.2)
            self.ask({"op": "end", "env": self.env(8)})
            self.ask({"op": "no-such-message"})
            wait_for(lambda: self.ask({"op": "status"}, record=False)["spooled"] == 3)
            self.ask({"op": "spool"})
        self.keep_folder(self.work / "state", "state-ended")
        self.keep_hook_message()

    def keep_hook_message(self):
        """Store example messages of the hook to senergyd, for later tests of compatibility.

        One example is the message that the hook sends. The other example is the file that the hook writes if
        senergyd does not run.
        """
        hook = self.work / "senergy-hook"
        subprocess.run(
            ["make", "-s", "-C", str(self.code / "prolog_epilog"), "DEFAULTS_FILE=/nonexistent"], check=True
        )
        shutil.copy(self.code / "prolog_epilog/senergy-hook", hook)
        environment = self.env(9, policy="monitor")
        command = [hook, "begin", "--socket", self.socket]
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        folder = Path(f"{self.socket}.deferred")
        (message,) = folder.glob("*.json")
        self.keep("deferred_begin.json", message.read_bytes())
        message.unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self.socket}.root")
            listener.listen()
            process = subprocess.Popen(command, env=environment)
            connection, _ = listener.accept()
            self.keep("hook_begin.json", connection.makefile("rb").readline())
            connection.sendall(b'{"ok": true}\n')
            process.wait(60)
        Path(f"{self.socket}.root").unlink()

    def deliver(self, munge_socket):
        """Let the programs of one release exchange every kind of message, for compatibility tests.

        The method starts senergyctld and an agent, runs a job, waits until the records are delivered, and
        sends every kind of request.
        """
        log = (self.work / "log").open("ab")
        argv = [sys.executable, "-P", "-m", "slurm_energy.controller.main", "--config", str(self.file)]
        controller = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            url = self.file.read_text().split('controller_url = "')[1].split('"')[0]
            client = ControllerClient(url, munge_socket, 30, [str(os.getuid())])

            def answers():
                assert controller.poll() is None, (self.work / "log").read_text()
                with contextlib.suppress(UnavailableError):
                    return client.get("/v1/status")

            wait_for(answers)
            self.requests.clear()
            with self.agent():
                self.ask({"op": "begin", "env": self.env(10, policy="edp")})
                self.use_power(2.5)
                wait_for(lambda: {"/v1/records", "/v1/live", "/v1/budget/poll"} <= self.answered())
                time.sleep(2)
                self.ask({"op": "end", "env": self.env(10)})
                wait_for(lambda: client.get("/v1/status")["records"] >= 3)
                for target in GETS:
                    path, _, query = target.partition("?")
                    params = dict(pair.split("=") for pair in query.split("&")) if query else None
                    with contextlib.suppress(EnergyError):
                        client.get(path, params)
                for path, body in (
                    ("/v1/records", {"items": [{"record": {"schema": 99}, "trace": None}]}),
                    ("/v1/predict", {"requests": [{"user": "root", "time_limit_s": 600.0}]}),
                    ("/v1/untuned-runs", {"programs": []}),
                ):
                    with contextlib.suppress(EnergyError):
                        client.post(path, body)
                wait_for(lambda: "/v1/periods" in self.answered() or time.sleep(0.5))
        finally:
            controller.send_signal(signal.SIGTERM)
            controller.wait(60)
        self.keep("policies", (self.work / "policies").read_bytes())

    def answered(self):
        return {entry["path"] for entry in self.requests if {"response", "error"} & entry.keys()}

    def keep(self, name, data):
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def keep_folder(self, source, name):
        goal = self.target / name
        shutil.rmtree(goal, ignore_errors=True)
        shutil.copytree(source, goal, ignore=shutil.ignore_patterns("lock", ".*"))
        for path in goal.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def keep_rest(self):
        """Store example files and messages of this release, for later tests of compatibility.

        These are the two tables for the Slurm plugin, a complete configuration, a decision about node power,
        the messages of the controller and of the agent, and the version.
        """
        table = self.work / "priority.table"
        table_file.write(table, [7, 8], [1000, 2000], default=-5)
        self.keep("priority.table", table.read_bytes())
        jobs = [{"job_id": job_id, "name": "train", "partition": "cpu"} for job_id in (7, 8)]
        self.keep("queue.table", snapshot(jobs))
        lines = schema_document.example_file().splitlines()
        self.keep("energy.toml", "\n".join(_uncommented(lines)).encode() + b"\n")
        decision = NodeDecision(
            3, {"package-0": 100.0, "package-1": None}, {"package-0": 80.0}, {}, 30.0, 1.0
        )
        self.keep("decision.json", json.dumps(decision.to_json(), indent=1).encode() + b"\n")
        unique, seen = [], set()
        for entry in self.requests:
            key = entry["path"], "error" in entry
            if {"response", "error"} & entry.keys() and key not in seen:
                seen.add(key)
                unique.append(entry)
        self.keep("controller_messages.json", json.dumps(unique, indent=1).encode() + b"\n")
        self.keep("agent_messages.json", json.dumps(self.agent_messages, indent=1).encode() + b"\n")
        self.keep("version", f"{slurm_energy.__version__}\n".encode())


def _uncommented(lines):
    """Yield the lines of an example configuration, with every key uncommented and thus set.

    If keys exclude each other, only the first one is set.
    """
    for line in lines:
        is_key = line.startswith("#") and not line.startswith("# ")
        yield line[1:] if is_key else line


def keep_databases(session: Session) -> None:
    """Create a test database on each kind of server, and keep a dump of it as a test file.

    The dump contains the schema and some rows. It is made with the server's own tool.
    """
    for name, make in SERVERS.items():
        with make() as server:
            accounting = Accounting(server.create_database("senergy"))
            migrations.prepare(accounting.path)
            trace = encode_trace(1000.0, 1.0, {"cpu": [1.5, 2.5, 4.0]})
            for number in range(4):
                record_id = f"{number:032x}"
                accounting.deliver(item(job_id=100 + number, record_id=record_id, trace=trace), now=1200.0)
            accounting.learn(job(100), job(101, user="bob"))
            parsed, _ = periods.read_periods([{"period": period(0, period_id="f" * 32).to_json()}])
            with engine.connect(accounting.path) as connection:
                periods.store_periods(connection, parsed, 9000.0)
            folder = server.directory
            if name == "mariadb":
                command = ["mariadb-dump", "--compact", "-u", "root", f"--socket={folder}/mariadb.sock"]
            else:
                command = ["pg_dump", "-h", folder, "-U", "postgres", "--inserts", "--no-owner", "--no-acl"]
            dump = subprocess.run([*command, "senergy"], check=True, capture_output=True)
            session.keep(f"{name}.sql", dump.stdout)


def main() -> None:
    code, work, target = map(Path, sys.argv[1:4])
    session = Session(code, work, target)
    try:
        with running_munged(work / "munge") as munge_socket, reserved_port() as port:
            session.configure(munge_socket, port)
            session.run_jobs()
            session.deliver(munge_socket)
            session.keep_rest()
            keep_databases(session)
    finally:
        shutil.rmtree(session.socket_folder)


if __name__ == "__main__":
    main()
