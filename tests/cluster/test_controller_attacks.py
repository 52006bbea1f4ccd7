"""Test attacks on senergyctld and its clients.

An unprivileged user attacks senergyctld's port. An impostor of senergyctld attacks its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import threading
from pathlib import Path

import http_attacks
import impostor
import pytest
from own_controller import RUNS_AS, Controller, reserved_port, wait_for

from slurm_energy.agent.state import delivery
from slurm_energy.agent.state.spool import Spool
from slurm_energy.cli import main as cli
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import UnavailableError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.response_proof import ResponseSeal
from slurm_energy.records import ComponentEnergy, EnergyRecord

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user"),
    pytest.mark.skipif(shutil.which("munged") is None, reason="munge is not installed"),
]
MAX_RESIDENT_MB = 200.0


def highest_resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024 / 1e6


@pytest.mark.parametrize("attack", http_attacks.ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attacked_controller_stays_small_and_responsive(controller, attack):
    controller.start()
    with http_attacks.running(attack, controller.port, controller.munge_socket):
        for _ in range(5):
            assert controller.client().get("/v1/status")["records"] == 0
    with http_attacks.running(attack, controller.port, controller.munge_socket):
        assert controller.client().get("/v1/status")["records"] == 0
    print(f"{attack.__name__}: {highest_resident_mb(controller.process.pid):.0f} MB")
    assert highest_resident_mb(controller.process.pid) < MAX_RESIDENT_MB
    assert "Traceback" not in controller.log.read_text()


def unread_mb(port):
    """Return how many MB of a server's responses the kernel still buffers.

    No client has read these responses yet. Responses on connections that the server has already closed are
    included.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    queued = [row[4].partition(":")[0] for row in rows if row[1].endswith(f":{port:04X}")]
    return sum(int(size, 16) for size in queued) / 1e6


def test_unread_responses_keep_no_memory(controller):
    controller.configure('record_hosts = "off"\nslurm_roles = false\n')
    controller.start()
    part = (ComponentEnergy("cpu", 5.0, "powercap:intel-rapl"),)
    records = [EnergyRecord("c1", f"n{n:05d}", n, 0, "edp", 100.0, 200.0, part) for n in range(1, 5001)]
    for first in range(0, len(records), 1000):
        items = [{"record": record.to_json(), "trace": None} for record in records[first : first + 1000]]
        assert len(controller.client().post("/v1/records", {"items": items})["accepted"]) == 1000
    with http_attacks.running(http_attacks.unread_answers, controller.port, controller.munge_socket):
        for _ in range(5):
            assert controller.client().get("/v1/status")["records"] == 5000
        open_files = Path(f"/proc/{controller.process.pid}/fd")
        wait_for(lambda: len(list(open_files.iterdir())) < 100)
        assert unread_mb(controller.port) < 40
    assert highest_resident_mb(controller.process.pid) < MAX_RESIDENT_MB
    assert "Traceback" not in controller.log.read_text()


def sealed(value, credential, munge_socket, status=200):
    """Return a response with a munge proof of the user who runs this process."""
    seal, text = ResponseSeal(credential, status), json.dumps(value)[:-1].encode()
    seal.update(text)
    return text + seal.tail(munge_socket)


def accepted(body):
    return {"accepted": [item["record"]["record_id"] for item in json.loads(body)["items"]], "rejected": []}


def rejected(body):
    items = json.loads(body)["items"]
    errors = [{"index": i, "record_id": e["record"]["record_id"], "error": "no"} for i, e in enumerate(items)]
    return {"accepted": [], "rejected": errors}


def unsigned_acceptance(munge_socket):
    return lambda credential, body: (200, json.dumps(accepted(body)).encode())


def unsigned_rejection(munge_socket):
    return lambda credential, body: (200, json.dumps(rejected(body)).encode())


def unsigned_refusal(munge_socket):
    return lambda credential, body: (400, b'{"error": "body is not JSON", "code": 2}')


def too_large(munge_socket):
    return lambda credential, body: (413, b'{"error": "body: larger than 1 byte", "code": 2}')


def signed_by_the_impostor(munge_socket):
    return lambda credential, body: (200, sealed(accepted(body), credential, munge_socket))


def true_proofs_of_other_requests(munge_socket):
    """Return a function with which an impostor answers by replaying old responses.

    The old responses come from the true controller, and their proofs are valid. Each response, however,
    belongs to an earlier delivery of the same records. The proof therefore does not fit the present request.
    """
    told = {"accepted": [f"id{n}" for n in range(3)], "rejected": []}
    earlier = [sealed(told, "another credential", munge_socket) for _ in range(20)]
    return lambda credential, body: (200, earlier.pop())


def another_body_under_a_true_proof(munge_socket):
    earlier = [sealed({"error": "x"}, "another credential", munge_socket) for _ in range(20)]

    def answer(credential, body):
        return 200, json.dumps(accepted(body))[:-1].encode() + b"," + earlier.pop().partition(b",")[2]

    return answer


IMPOSTURES = (
    unsigned_acceptance,
    unsigned_rejection,
    unsigned_refusal,
    too_large,
    signed_by_the_impostor,
    true_proofs_of_other_requests,
    another_body_under_a_true_proof,
)


@contextlib.contextmanager
def delivering(spool, url, munge_socket, monkeypatch):
    """Context manager in which the agent's delivery of records to the controller runs in a thread."""
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.1)
    cluster = ClusterConfig(controller_url=url, munge_socket=munge_socket, controller_users=[RUNS_AS])
    stop = threading.Event()

    async def work(function, *arguments):
        return function(*arguments)

    async def run():
        task = asyncio.create_task(delivery.RecordDelivery(spool, cluster, lambda: "n1", work).run())
        while not stop.is_set():
            await asyncio.sleep(0.01)
        task.cancel()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("imposture", IMPOSTURES, ids=lambda imposture: imposture.__name__)
def test_an_impostor_gets_no_record_deleted(tmp_path, munged, monkeypatch, imposture):
    part = (ComponentEnergy("cpu", 5.0, "powercap:intel-rapl"),)
    spool = Spool(tmp_path / "spool", 10**9)
    for job_id in range(3):
        record = EnergyRecord("c1", "n1", job_id, 0, "edp", 100.0, 200.0, part, record_id=f"id{job_id}")
        spool.add(record, {"start": 100.0, "interval_s": 1.0, "columns": {}})
    spooled = sorted((path.name, path.read_bytes()) for path in spool.folder.iterdir())
    with reserved_port() as port:
        controller = Controller(tmp_path, munged, port)
        with delivering(spool, controller.url, munged, monkeypatch):
            with impostor.listening(port, imposture(munged)) as answered:
                for _ in range(4):
                    answered()
                client = ControllerClient(controller.url, munged, 30.0, [RUNS_AS])
                with pytest.raises(UnavailableError):
                    client.post("/v1/records", {"items": []})
            assert sorted((path.name, path.read_bytes()) for path in spool.folder.iterdir()) == spooled
            try:
                controller.start()
                wait_for(lambda: spool.count() == 0)
                assert controller.client().get("/v1/status")["records"] == 3
            finally:
                controller.stop()
    assert not list(spool.folder.glob("rejected/*"))


def test_the_command_line_rejects_an_impostor(tmp_path, munged, capsys):
    told = {"version": "0", "records": 5, "policies": [], "scope": "all", "jobs": [], "rows": []}
    with reserved_port() as port:
        controller = Controller(tmp_path, munged, port)
        answers = {
            "has no proof": lambda credential, body: (200, json.dumps(told).encode()),
            f"uid {impostor.NOBODY} made it": lambda credential, body: (
                200,
                sealed(told, credential, munged),
            ),
        }
        for words, answer in answers.items():
            with impostor.listening(port, answer):
                for command in ("policies", "prio", "share", "acct"):
                    assert cli.main([command, "--config", str(controller.file)]) == 4
                    output = capsys.readouterr()
                    assert output.out == ""
                    assert output.err.count("\n") == 1 and words in output.err, output.err
