"""No record is lost or stored twice when senergyctld or its database server is killed.

Both are killed with `kill -9` while an agent delivers records. senergyctld is a process with a real munged,
on each kind of database. Instead of a whole agent, the test uses the agent's spool and delivery. With `make
soak`, the test kills 200 times and also stops a server for ten minutes.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from own_controller import RUNS_AS, Controller, reserved_port, wait_for

from slurm_energy.accounting import engine
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.schema import tables
from slurm_energy.accounting.schema.usage_tables import usage_day_hours, usage_sums
from slurm_energy.accounting.usage.usage_rollup import UsageRollup
from slurm_energy.agent.state import delivery
from slurm_energy.agent.state.delivery import PERIOD_ROUTE, RECORD_ROUTE, RecordDelivery
from slurm_energy.agent.state.spool import Spool
from slurm_energy.config import ClusterConfig
from slurm_energy.node_period import NodePeriod, PeriodEnergy, PeriodJob
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy.reports.trace import encode_trace

pytestmark = [pytest.mark.cluster, pytest.mark.root]
ABSENCE_S = 600.0
STORES = ("sqlite", "mariadb", "postgresql")
HOUR_S = 3600
FIRST_HOUR = int(time.time()) // HOUR_S - 10_000
START = time.time() - 86400.0  # the controller deletes old traces
TRACE = encode_trace(START, 1.0, {"cpu": [100.0] * 60})


def record(number):
    components = (ComponentEnergy("cpu", 5.0 + number, "powercap:intel-rapl"),)
    times = (START + number, START + number + 60)
    return EnergyRecord("c1", "n1", number, 0, "edp", *times, components, record_id=f"{number:032x}")


def node_period(number):
    energy_uj = 1_000_000 + number
    return NodePeriod(
        cluster="c1",
        node="n1",
        start=(FIRST_HOUR + number) * HOUR_S,
        end=(FIRST_HOUR + number + 1) * HOUR_S,
        components={"cpu": PeriodEnergy(energy_uj + 7, energy_uj, 7, 0)},
        jobs=(PeriodJob(number, 0, 0, {"cpu": energy_uj}),),
        period_id=f"{number:032x}",
    )


class AgentDelivery:
    """The spools of an agent and the tasks that deliver them, in a thread with a loop of their own."""

    def __init__(self, directory: Path, controller: Controller) -> None:
        self.count = 0
        (directory / "spools").mkdir()
        self._spools = [Spool(directory / "spools" / name, 10**9) for name in ("records", "periods")]
        cluster = ClusterConfig(
            controller_url=controller.url,
            munge_socket=controller.munge_socket,
            controller_users=(RUNS_AS,),
        )
        self._tasks = [
            RecordDelivery(spool, cluster, lambda: "n1", self._work, route)
            for spool, route in zip(self._spools, (RECORD_ROUTE, PERIOD_ROUTE), strict=True)
        ]
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._stop = asyncio.Event()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def add(self, many: int) -> None:
        """Add `many` energy records of jobs and `many` node periods to the agent's spools.

        Each energy record has a power trace. A node period is the energy of the node in a time interval. A
        spool holds the data that the controller has not yet confirmed.
        """
        with self._lock:
            for number in range(self.count, self.count + many):
                for path, data in self._spools[0].add(record(number), TRACE).items():
                    assert Path(path).read_bytes() == data
                self._spools[1].add(node_period(number), None)
            self.count += many
        for task in self._tasks:
            self._loop.call_soon_threadsafe(task.wake)

    def waiting(self) -> int:
        with self._lock:
            return sum(spool.count() for spool in self._spools)

    async def _work(self, function, *arguments):
        with self._lock:
            return function(*arguments)

    def _run(self) -> None:
        async def deliver():
            tasks = [asyncio.create_task(task.run()) for task in self._tasks]
            await self._stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._loop.run_until_complete(deliver())
        self._loop.close()


@pytest.fixture(params=STORES)
def store(request, tmp_path, database_servers):
    """Location of an empty database, and the server of this database; the server is None for SQLite."""
    if request.param == "sqlite":
        yield str(tmp_path / "senergy.db"), None
    else:
        with database_servers.database(request.param) as url:
            yield url, database_servers.get(request.param)


@pytest.fixture
def delivering(tmp_path, munged, store, monkeypatch):
    """A controller that is not yet started, and an agent that delivers records to it.

    The controller uses the given database.
    """
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.2)
    monkeypatch.setattr(delivery, "_BATCH_ITEMS", 5)
    with reserved_port() as port:
        controller = Controller(tmp_path, munged, port)
        controller.configure(f'record_hosts = "off"\nstate_dir = "{tmp_path}"\n', database=store[0])
        agent = AgentDelivery(tmp_path, controller)
        agent.start()
        yield controller, agent
        agent.close()
        controller.stop(signal.SIGKILL)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.soak)])
def test_kills_of_controller_and_server_lose_and_double_nothing(kills, store, delivering):
    location, server = store
    controller, agent = delivering
    chance = random.Random(14)
    controller.start()
    for number in range(kills):
        agent.add(20)
        time.sleep(chance.uniform(0.0, 0.1))
        if server is not None and number % 3 == 1:
            server.kill()
            server.start()
            wait_for(lambda: controller.process.poll() is None)
        else:
            controller.stop(signal.SIGKILL)
            controller.start()
    wait_until_empty(agent)
    controller.stop()
    check_contents(location, agent.count)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_minutes_without_a_server(store, delivering):
    location, server = store
    if server is None:
        pytest.skip("SQLite has no server")
    controller, agent = delivering
    controller.start()
    agent.add(20)
    wait_until_empty(agent)
    server.stop()
    before, memory = time.monotonic(), resident_bytes(controller)
    while time.monotonic() - before < ABSENCE_S:
        agent.add(10)
        time.sleep(5)
        assert controller.process.poll() is None
    assert resident_bytes(controller) < memory + (32 << 20)
    server.start()
    wait_until_empty(agent)
    controller.stop()
    check_contents(location, agent.count)


def wait_until_empty(agent):
    deadline = time.monotonic() + 240
    while agent.waiting():
        assert time.monotonic() < deadline, f"{agent.waiting()} items wait"
        time.sleep(0.05)


def resident_bytes(controller):
    text = Path(f"/proc/{controller.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) * 1024


def check_contents(location, count):
    """Check that the database contains each record and each period once, in the order of the spool.

    The sums of energies in the usage tables must equal the delivered energies.
    """
    integrity.verify(location)
    with engine.connect(location) as connection:
        records = tables.records.c
        rows = connection.execute(tables.records.select().order_by(records.id)).fetchall()
        assert [row.job_id for row in rows] == list(range(count))
        assert [row.energy_joules for row in rows] == [5.0 + number for number in range(count)]
        assert len(connection.execute(tables.traces.select()).fetchall()) == count
        periods = connection.execute(tables.node_periods.select().order_by(tables.node_periods.c.id)).all()
        assert [row.start for row in periods] == [(FIRST_HOUR + number) * HOUR_S for number in range(count)]
        total_uj = sum(row.total_uj for row in connection.execute(tables.periods.select()))
        assert total_uj == sum(1_000_000 + number + 7 for number in range(count))
        rollup = UsageRollup()
        while rollup.advance(connection, time.time()):
            pass
        assert sum(row.total_uj for row in connection.execute(usage_sums.select())) == total_uj
        assert sum(sum(row[2:]) for row in connection.execute(usage_day_hours.select())) == total_uj
