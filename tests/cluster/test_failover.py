"""Test two senergyctld that share one database server, one active and one passive.

The processes and munge are real; the agents are simulated. benchmarks/failover.py repeats the faults of
these tests at random instants and measures the takeovers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import threading
import time

import pytest
import sqlalchemy

from slurm_energy.errors import UnavailableError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy_lab.controller_pair import DEADLINE_S, running_pair
from slurm_energy_lab.simulated_agents import SimulatedAgents
from slurm_energy_lab.simulated_nodes import SimulatedNode, SimulatedWorkload

HOUR_S = 3600


@pytest.fixture(params=["postgresql", pytest.param("mariadb", marks=pytest.mark.soak)])
def server(request, database_servers):
    return database_servers.get(request.param)


@pytest.fixture
def url(server):
    url = server.create_database("senergy_pair")
    yield url
    server.drop_database("senergy_pair")


def item(job_id):
    components = (ComponentEnergy("cpu", 5.0, "powercap:intel-rapl"),)
    record = EnergyRecord("c1", "n1", job_id, 0, "edp", 100.0, 200.0, components)
    return {"record": record.to_json(), "trace": None}


def deliver(pair, job_id):
    return pair.client(60.0).post("/v1/records", {"items": [item(job_id)], "node": "n1"})


def stored(url, query="SELECT record_id FROM records"):
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        rows = list(connection.execute(sqlalchemy.text(query)).scalars())
    engine.dispose()
    return rows


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_restart_of_the_active_controller_hands_over(url):
    with running_pair(url) as pair:
        first = pair.wait_active()
        second = pair.other(first)
        deliver(pair, 1)
        answer = pair.client().get("/v1/status")["lease"]
        assert answer["active"] == first.url
        alone = ControllerClient(second.url, pair.munge_socket, 5.0, [str(os.getuid())])

        # A controller that loses the first election listens again after a moment without a listener.
        def refusal():
            with pytest.raises(UnavailableError) as raised:
                alone.get("/v1/status")
            return str(raised.value)

        wait_until(lambda: f"passive: the active controller is {first.url}" in refusal())
        wait_until(second.policies.exists)
        assert second.policies.read_text() == first.policies.read_text()
        first.end(signal.SIGTERM)
        pair.wait_active(second)
        assert deliver(pair, 1)["accepted"]  # the agent did not see the first response
        deliver(pair, 2)
        assert pair.lease()["token"] == answer["token"] + 1
    assert len(stored(url)) == 2


class Cut:
    """A proxy between a client and a server's Unix socket that can interrupt the traffic.

    During an interruption, bytes wait and no connection is closed, so that neither side is
    notified.
    """

    def __init__(self, target, path):
        self._target, self._open = target, threading.Event()
        self._open.set()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o777)
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self._open.clear()

    def heal(self):
        self._open.set()

    def close(self):
        self.heal()
        self._listening.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client):
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            self._open.wait()
            server.connect(self._target)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    data = source.recv(65536)
                    self._open.wait()
                    if not data:
                        return
                    (server if source is client else client).sendall(data)


@pytest.fixture
def cut_networks(server, url, tmp_path_factory):
    """Yield two connections to the database server that the test can cut, and their database URLs.

    Each controller of the pair uses one of the URLs. Each URL leads through one `Cut`.
    """
    if server.name != "postgresql":
        pytest.skip("the URL of PostgreSQL names the directory of the socket")
    cuts, urls = [], []
    for number in range(2):
        folder = tmp_path_factory.mktemp(f"cut{number}")
        cuts.append(Cut(f"{server.directory}/.s.PGSQL.5432", folder / ".s.PGSQL.5432"))
        urls.append(f"postgresql://postgres@/senergy_pair?host={folder}")
    yield cuts, urls
    for one in cuts:
        one.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_controller_that_is_cut_off_neither_writes_nor_disturbs(cut_networks, url):
    cuts, urls = cut_networks
    with running_pair(*urls) as pair:
        active = pair.wait_active()
        before = pair.lease()["token"]
        own, other = cuts if active is pair.controllers[0] else cuts[::-1]
        other.cut()  # the passive one
        time.sleep(20.0)
        deliver(pair, 1)
        assert pair.active() is active
        other.heal()
        pair.wait_ready()
        own.cut()
        pair.wait_active(pair.other(active))
        assert active.role() != "active"
        deliver(pair, 2)
        own.heal()
        wait_until(lambda: active.role() == "passive")
        pair.wait_ready()
        assert pair.lease()["token"] == before + 1
    assert len(stored(url)) == 2


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_stopped_controller_wakes_up_in_the_middle_of_a_delivery(url):
    """No energy data are lost or stored twice if the active controller is stopped during deliveries.

    The other controller takes over. When the stopped controller continues, its open requests continue, too.
    """
    with running_pair(url) as pair:
        model = SimulatedWorkload("c1", job_s=60.0, trace_points=60)
        nodes = [SimulatedNode(model, number, 1, time.time()) for number in range(300)]
        agents = SimulatedAgents(pair.cluster, nodes, live_report_s=10.0)
        thread = threading.Thread(target=agents.run, daemon=True)
        thread.start()
        now = int(time.time()) // HOUR_S * HOUR_S
        for number in range(3):
            end = now - number * HOUR_S
            agents.close_period(end - HOUR_S, end, 1.0)
            time.sleep(0.5)
            active = pair.wait_active()
            active.send(signal.SIGSTOP)
            pair.wait_active(pair.other(active))
            time.sleep(45.0)
            active.send(signal.SIGCONT)
            wait_until(lambda one=active: one.role() == "passive")
            pair.wait_ready()
        agents.end_jobs_no_more()
        wait_until(lambda: not agents.outstanding)
        agents.stop()
        thread.join()
    ids = stored(url, "SELECT period_id FROM node_periods")
    assert sorted(ids) == sorted(agents.figures.handed_over["/v1/periods"])
    assert sorted(stored(url)) == sorted(agents.figures.handed_over["/v1/records"])
    assert not agents.figures.rejected


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_one_of_two_is_active_after_each_start_and_each_loss_of_the_database(server, url):
    with running_pair(url) as pair:
        for number in range(5):
            for one in pair.controllers:
                one.end()
            pair.start()  # both at once
            wait_until(lambda: sorted(str(one.role()) for one in pair.controllers) == ["active", "passive"])
            deliver(pair, number)
        for number in range(5, 8):
            server.kill()
            time.sleep(4.0 * (number - 4))  # shorter and longer than the lease
            server.start()
            pair.wait_active()
            pair.wait_ready()
            assert deliver(pair, number)["accepted"]
            wait_until(lambda: sorted(str(one.role()) for one in pair.controllers) == ["active", "passive"])
    assert len(stored(url)) == 8


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_active_controller_follows_slurmctld(url, tmp_path):
    """Check that the active controller is the controller on the host of the active slurmctld.

    In the test, each of two controllers is configured to be on a different host of slurmctld.
    """
    name = os.uname().nodename
    with running_pair(url) as pair:
        for index, one in enumerate(pair.controllers):
            hosts = [name, "elsewhere"] if index == 0 else ["elsewhere", name]
            conf = tmp_path / f"slurm{index}.conf"
            conf.write_text(
                "ClusterName=c1\n"
                + "".join(f"SlurmctldHost={host}\n" for host in hosts)
                + f"StateSaveLocation={tmp_path}\n"
            )
            one.environment = {"SLURM_CONF": str(conf)}

        def beat(index):
            (tmp_path / "heartbeat").write_bytes(struct.pack("!QQ", int(time.time()), index))

        for one in pair.controllers:
            one.end()
        beat(0)
        pair.start()
        first, second = pair.controllers
        if pair.active() is second:  # it was faster, and hands over after the hysteresis
            beat(0)
            pair.wait_active(first)
        assert [one["beside_slurmctld"] for one in sorted(pair.lease()["controllers"], key=json.dumps)]
        beat(1)
        pair.wait_active(second)
        assert "handing over to" in first.log.read_text()
