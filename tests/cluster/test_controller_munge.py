"""Tests of senergyctld as a separate process, together with a real munged.

The tests check munge credentials, requests of other users, signals, exit codes and kill -9.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from own_controller import (
    NOBODY,
    TIMEOUT_S,
    as_nobody,
    entry,
    reserved_port,
    running_munged,
    wait_for,
)

from slurm_energy.errors import (
    ForbiddenError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.request_proof import request_payload
from slurm_energy.slurm import munge

pytestmark = pytest.mark.skipif(shutil.which("munged") is None, reason="munge is not installed")


@pytest.fixture(scope="module")
def foreign_munged(place):
    """Run a munged with another key than the cluster, as on a host outside the cluster."""
    with running_munged(place / "foreign") as munge_socket:
        yield munge_socket


def test_metrics_are_served_at_the_configured_address(controller):
    with reserved_port() as port:
        controller.configure(f'[metrics]\ncontroller_listen = "127.0.0.1:{port}"\n')
        controller.start()
        controller.client().post("/v1/records", {"items": [entry(1)]})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
        assert 'slurm_energy_node_last_record_end_timestamp_seconds{cluster="c1",node="n1"} 200.0' in text
        assert controller.stop() == 0


class TestCredentials:
    @pytest.mark.parametrize("payload", [b"", b"x", b"\0\xff" * 5000])
    def test_credentials_identify_the_user_and_carry_bytes(self, munged, payload):
        assert munge.decode(munge.encode(payload, munged), munged) == (payload, os.getuid(), os.getgid())

    def test_open_once(self, munged):
        credential = munge.encode(b"x", munged)
        munge.decode(credential, munged)
        with pytest.raises(ForbiddenError, match="Replayed credential"):
            munge.decode(credential, munged)

    def test_of_another_key_and_forged(self, munged, foreign_munged):
        for credential in (munge.encode(b"x", foreign_munged), "MUNGE:AAAA:", "nonsense"):
            with pytest.raises(ForbiddenError, match="credential refused"):
                munge.decode(credential, munged)

    def test_too_long(self, munged):
        with pytest.raises(UsageError):
            munge.encode(bytes(4 << 20), munged)

    def test_in_threads(self, munged):
        def work(number):
            payload = f"{number}".encode()
            return munge.decode(munge.encode(payload, munged), munged)[0] == payload

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(400)))

    def test_memory_is_released(self, munged):
        def work(count):
            for _ in range(count):
                credential = munge.encode(bytes(16384), munged)
                munge.decode(credential, munged)
                with contextlib.suppress(ForbiddenError):
                    munge.decode(credential, munged)

        work(50)
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work(500)  # 8 MiB of payload each way
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 4096


class TestRequests:
    def test_requests_and_responses_over_http(self, controller):
        controller.start()
        client = controller.client()
        sent = [entry(1), entry(2)]
        answer = client.post("/v1/records", {"items": sent})
        assert answer["accepted"] == [e["record"]["record_id"] for e in sent]
        assert [answer[key] for key in ("rejected", "retry", "traces_rejected")] == [[], [], []]
        found = client.get("/v1/records", {"job": "2", "steps": "1"})
        assert [r["job_id"] for r in found["records"]] == [2]
        assert client.get("/v1/jobs/1")["records"][0]["job"] is None

    def test_errors_keep_their_class_and_text(self, controller):
        controller.start()
        client = controller.client()
        for path, params, error, words in [
            ("/v1/records", {"job": "x"}, UsageError, "'x' is not a job id"),
            ("/v1/jobs/77", None, NotFoundError, "job 77: no energy record"),
        ]:
            with pytest.raises(error, match=words):
                client.get(path, params)

    def test_foreign_and_replayed_credentials_are_refused(self, controller, foreign_munged):
        controller.start()
        with pytest.raises(ForbiddenError, match="credential refused"):
            controller.client(foreign_munged).get("/v1/status")
        payload = request_payload("GET", "/v1/status", b"")
        headers = {"Authorization": f"MUNGE {munge.encode(payload, controller.munge_socket)}"}
        request = urllib.request.Request(f"{controller.url}/v1/status", headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            assert response.status == 200
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=TIMEOUT_S)
        with raised.value as response:
            assert response.status == 401
            assert "Replayed credential" in json.loads(response.read())["error"]

    def test_a_long_list_of_jobs(self, controller):
        controller.start()
        controller.client().post("/v1/records", {"items": [entry(4000)]})
        jobs = ",".join(str(number) for number in range(1, 4001))
        assert len(controller.client().get("/v1/records", {"job": jobs})["records"]) == 1

    @pytest.mark.parametrize(
        "raw",
        [
            b"\0\xff\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /v1/status HTTP/1.1\r\n\r\n",
            b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: " + b"a" * 300_000 + b"\r\n\r\n",
            b"POST /v1/records HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
            b"POST /v1/records HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n",
            b"POST /v1/records HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ],
        ids=lambda raw: repr(raw[:24]),
    )
    def test_malformed_input_on_the_port(self, controller, raw):
        controller.start()
        address = ("127.0.0.1", controller.port)
        with socket.create_connection(address, TIMEOUT_S) as connection, contextlib.suppress(OSError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        assert controller.client().get("/v1/status")["records"] == 0
        assert "Traceback" not in controller.log.read_text()

    @pytest.mark.root
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
    def test_another_user(self, controller):
        controller.start()
        controller.client().post("/v1/records", {"items": [entry(1, uid=0), entry(2, uid=NOBODY)]})
        assert as_nobody(controller, "/v1/records") == "[2]"
        for path in ("/v1/records?job=1", "/v1/records?user=root", "/v1/jobs/1"):
            assert as_nobody(controller, path).startswith("ForbiddenError")
        assert as_nobody(controller, "/v1/status") == "ok"


class TestLife:
    def test_sigterm_ends_it_and_a_restart_has_all_records(self, controller):
        controller.start()
        controller.client().post("/v1/records", {"items": [entry(1)]})
        assert controller.stop() == 0
        with pytest.raises(UnavailableError, match="is senergyctld running"):
            controller.client().get("/v1/status")
        controller.start()
        assert controller.client().get("/v1/status")["records"] == 1

    def test_second_controller(self, controller, tmp_path):
        controller.start()
        before = controller.policies.read_bytes(), controller.policies.stat().st_ino
        assert controller.fails()[0] == 7
        controller.configure(database=tmp_path / "other.db")
        code, line = controller.fails()
        assert code == 7 and "address in use" in line
        with reserved_port() as port:
            controller.configure(port=port)
            code, line = controller.fails()
        assert code == 7 and "held by another senergyctld" in line, line
        assert before == (controller.policies.read_bytes(), controller.policies.stat().st_ino)
        assert controller.client().get("/v1/status")["records"] == 0

    @pytest.mark.parametrize("check", [(), ("--check",)], ids=["start", "check"])
    def test_fatal_errors_are_one_line(self, controller, tmp_path, check):
        controller.configure(database=tmp_path / "missing" / "a.db")
        code, line = controller.fails(*check)
        assert code == 4 and "missing does not exist" in line and "Traceback" not in line
        controller.configure(extra='listn = "x"\n')
        code, line = controller.fails(*check)
        assert code == 3 and "listn" in line and "did you mean 'listen'?" in line
        controller.file.write_text("[")
        assert controller.fails(*check)[0] == 3
        controller.file.unlink()
        code, line = controller.fails(*check)
        assert code == 3 and str(controller.file) in line
        assert not controller.policies.exists()

    def test_check_of_a_valid_configuration(self, controller):
        done = subprocess.run(
            controller.argv("--check"), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(": ok\n")
        assert [path.name for path in controller.directory.iterdir()] == ["energy.toml"]

    def test_reload(self, controller):
        controller.start()
        assert "night" not in controller.policies.read_text()
        controller.configure(extra='[policies.night]\nusers = ["alice"]\n')
        controller.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "policy night users=alice" in controller.policies.read_text())
        names = [p["name"] for p in controller.client().get("/v1/policies")["policies"]]
        assert "night" in names

    @pytest.mark.parametrize("bad", ['[policies.night]\nbase = "nonsense"\n', "[", None])
    def test_an_invalid_file_changes_nothing(self, controller, bad):
        controller.configure(extra='[policies.day]\nusers = ["alice"]\n')
        controller.start()
        good = controller.policies.read_bytes()
        if bad is None:
            controller.file.unlink()
        else:
            controller.configure(extra=bad)
        controller.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "configuration not reloaded" in controller.log.read_text())
        assert controller.policies.read_bytes() == good
        assert "day" in [p["name"] for p in controller.client().get("/v1/policies")["policies"]]


def test_help_and_version(controller):
    for argument, words in (("--help", "examples:"), ("--version", "senergyctld 0")):
        done = subprocess.run(
            controller.argv(argument), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0 and words in done.stdout


class TestClientAlone:
    @pytest.mark.parametrize(
        "url", ["", "localhost:6828", "https://head:1", "http://", "http://h:x", "http://h/p"]
    )
    def test_bad_addresses(self, url):
        with pytest.raises(UsageError, match=r"controller_url"):
            ControllerClient(url)

    def test_nothing_listens(self, munged):
        with (
            reserved_port() as port,
            pytest.raises(UnavailableError, match=r"refused: is senergyctld running\?"),
        ):
            ControllerClient(f"http://127.0.0.1:{port}", munged).get("/v1/status")

    def test_something_else_listens(self, munged):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]

            def answer():
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"220 mail ready\r\n")

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(UnavailableError, match="controller http"):
                ControllerClient(f"http://127.0.0.1:{port}", munged).get("/v1/status")
            thread.join(TIMEOUT_S)


class TestTuning:
    def test_advice_is_for_agents_and_programs_for_their_owners(self, controller):
        controller.start()
        query = "/v1/tuning/advice?node=n1&job_id=1&restart_count=0&hardware=A40&objective=edp"
        assert "may not" in as_nobody(controller, query)
        assert "ForbiddenError: programs of user root" in as_nobody(controller, "/v1/tuning?user=root")
        assert controller.client().get("/v1/tuning")["programs"] == []
        with pytest.raises(NotFoundError, match="nothing has been learned"):
            controller.client().post("/v1/tuning/forget", {"workload": "0123456789abcdef"})
        with pytest.raises(UsageError, match="node: '' is not a name"):  # unknown parameters are ignored
            controller.client().get("/v1/tuning/advice", {"uid": "0"})
