"""Tests of the metrics for Prometheus, and of the listener that serves them.

The listener limits connections and slow requests. If it listens beyond the loopback interface, it
requires a token and TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from property_examples import examples
from shared_node import SharedNode

from slurm_energy.agent.node_metrics import NodeMetrics
from slurm_energy.config.metrics_section import MetricsConfig
from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.openmetrics import listener as listening
from slurm_energy.openmetrics.exposition import OPENMETRICS_TYPE, MetricFamily, MetricKind, render
from slurm_energy.openmetrics.listener import MetricsListener

TOKEN = "0123456789abcdef"
KINDS = ("node", "jobs", "idle", "unattributed")


def _families():
    joules = MetricFamily("node_joules", "Energy.", MetricKind.COUNTER, ("node", "domain"))
    joules.add(12.5, "n1", "cpu")
    joules.add(None, "n1", "dram")
    limits = MetricFamily("budget_watts", "Limit.", labels=("budget",))
    limits.add(float("inf"), "site")
    return [joules, limits]


def assert_promtool_accepts(text: str) -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_values_are_left_out_and_names_carry_unit_and_prefix():
    text, content_type = render(_families(), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith(OPENMETRICS_TYPE)
    assert [line for line in text.decode().splitlines() if not line.startswith("#")] == [
        'slurm_energy_node_joules_total{domain="cpu",node="n1"} 12.5'
    ]
    assert text.endswith(b"# EOF\n")
    assert render(_families(), "text/plain")[1].startswith("text/plain; version=")


@examples(50)
@given(st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_labels_with_any_text_are_read_back(samples):
    family = MetricFamily("budget_watts", "Limit.", labels=("budget",))
    for name, value in samples.items():
        family.add(value, name)
    text = render([family], OPENMETRICS_TYPE)[0].decode()
    read = [
        (sample.labels["budget"], sample.value)
        for parsed in text_string_to_metric_families(text)
        for sample in parsed.samples
    ]
    assert dict(read) == samples and len(read) == len(samples)


def _config(tmp_path: Path, **values) -> MetricsConfig:
    if values.pop("token", False):
        path = tmp_path / "token"
        path.write_text(f"{TOKEN}\n")
        path.chmod(0o600)
        values["token_file"] = path
    return MetricsConfig(**values)


def _run(settings: MetricsConfig, requests, address="127.0.0.1:0", context=None, collect=None):
    """Return the responses to raw requests, each on a connection of its own."""

    async def families():
        return _families()

    async def exchange(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        except ConnectionError:  # the listener closed it with bytes unread
            return b""
        finally:
            writer.close()

    async def serve():
        listener = MetricsListener(address, settings, collect or families)
        await listener.open()
        try:
            assert listener.port is not None
            return await asyncio.gather(*(exchange(listener.port, request) for request in requests))
        finally:
            await listener.close()

    return asyncio.run(serve())


def _get(path: str = "/metrics", method: str = "GET", **headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: n1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_only_metrics_are_served_and_only_to_holders_of_the_token(tmp_path):
    right = {"Authorization": f"Bearer {TOKEN}"}
    requests = {
        _get(**right): b"200",
        _get("/metrics?x=1", **right): b"200",
        _get("/", **right): b"404",
        _get(method="POST", **right): b"405",
        _get(): b"401",
        _get(Authorization=f"Bearer {TOKEN}x"): b"401",
        _get("/", Authorization="Basic x"): b"401",
        b"\x16\x03\x01\r\n\r\n": b"400",
    }
    answers = _run(_config(tmp_path, token=True), requests)
    assert [answer.split(b" ")[1] for answer in answers] == list(requests.values())
    assert all(b"joules" not in answer for answer in answers[2:])


def test_long_and_slow_requests_are_cut_off_and_others_served(monkeypatch):
    monkeypatch.setattr(listening, "HEAD_TIMEOUT_S", 0.2)
    long = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * listening.MAX_HEAD_BYTES * 2
    answers = _run(MetricsConfig(), [long, b"GET /met", _get()])
    assert answers[:2] == [b"", b""] and answers[2].startswith(b"HTTP/1.1 200")


def test_connections_beyond_the_limit_are_closed(monkeypatch):
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 2)
    answers = _run(MetricsConfig(), [_get()] * 20)
    served = [answer for answer in answers if answer.startswith(b"HTTP/1.1 200")]
    assert served and all(answer in (b"", served[0]) for answer in answers)


def test_metrics_are_collected_at_most_once_a_second():
    calls = []

    async def collect():
        calls.append(1)
        return _families()

    _run(MetricsConfig(), [_get()] * 10, collect=collect)
    assert len(calls) == 1


def test_an_error_of_the_daemon_is_a_response():
    async def collect():
        raise UnavailableError("database", "is locked")

    (answer,) = _run(MetricsConfig(), [_get()], collect=collect)
    assert answer.startswith(b"HTTP/1.1 503") and b"database: is locked" in answer


def test_listening_beyond_loopback_needs_token_and_tls(tmp_path):
    with pytest.raises(ConfigError, match="not on the loopback interface"):
        _run(_config(tmp_path, token=True), [], address="0.0.0.0:0")
    short = tmp_path / "short"
    short.write_text("abc")
    short.chmod(0o600)
    with pytest.raises(ConfigError, match="shorter than 16"):
        _run(MetricsConfig(token_file=short), [])
    short.chmod(0o644)
    with pytest.raises(ConfigError, match="short"):
        _run(MetricsConfig(token_file=short), [])


def _key_and_certificate(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    key.chmod(0o600)
    return key, certificate


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_tls_protects_the_listener(tmp_path):
    key, certificate = _key_and_certificate(tmp_path)
    settings = _config(tmp_path, token=True, tls_certificate=certificate, tls_key=key)
    context = ssl.create_default_context(cafile=certificate)
    (answer,) = _run(settings, [_get(Authorization=f"Bearer {TOKEN}")], "0.0.0.0:0", context)
    assert answer.startswith(b"HTTP/1.1 200")
    (answer,) = _run(settings, [_get(Authorization=f"Bearer {TOKEN}")], "0.0.0.0:0")
    assert b"200" not in answer


def test_a_node_exposes_its_energy_by_source_and_its_jobs_only_on_request(tmp_path):
    node = SharedNode(tmp_path, idle_watts={"cpu": 10.0})
    node.begin(7, 4)
    node.use(20.0, {"cpu": 100.0, "dram": 10.0, "other": 40.0}, {7: 4.0}, 0.5)

    async def work(function, *arguments):
        return function(*arguments)

    def text(jobs: bool, accept: str = OPENMETRICS_TYPE) -> str:
        node.manager.config = dataclasses.replace(node.config, metrics=MetricsConfig(jobs=jobs))
        metrics = NodeMetrics(node.manager, node._devices(), node.state, work)
        return render(asyncio.run(metrics.collect()), accept)[0].decode()

    without, with_jobs = text(False), text(True)
    lines = dict(line.rsplit(" ", 1) for line in with_jobs.splitlines() if not line.startswith("#"))
    labels = f'domain="cpu",node="{node.manager.node}",source="powercap:intel-rapl"'
    parts = [float(lines[f"slurm_energy_{kind}_joules_total{{{labels}}}"]) for kind in KINDS]
    assert parts[0] == pytest.approx(2000.0) and parts[0] == pytest.approx(sum(parts[1:]))
    assert "slurm_energy_job_joules" not in without
    (job,) = (name for name in lines if name.startswith("slurm_energy_job_joules_total") and "cpu" in name)
    assert 'jobid="7"' in job and float(lines[job]) == pytest.approx(parts[1])
    if shutil.which("promtool"):
        assert_promtool_accepts(text(True, "text/plain"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_clients_without_a_handshake_are_limited_and_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "HEAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 2)
    key, certificate = _key_and_certificate(tmp_path)
    settings = _config(tmp_path, token=True, tls_certificate=certificate, tls_key=key)
    assert set(_run(settings, [b""] * 5)) == {b""}  # `_run` waits 20 s for each


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_cut_off(monkeypatch):
    monkeypatch.setattr(listening, "RESPONSE_TIMEOUT_S", -4.0)  # 1 s with the time for the head

    async def collect():
        family = MetricFamily("budget_watts", "Limit.", labels=("budget",))
        family.add(1.0, "x" * (64 << 20))
        return [family]

    async def read_late() -> int:
        listener = MetricsListener("127.0.0.1:0", MetricsConfig(), collect)
        await listener.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.transport.pause_reading()
        writer.write(_get())
        while not listener._connections:
            await asyncio.sleep(0.01)
        while listener._connections:
            await asyncio.sleep(0.01)
        writer.transport.resume_reading()
        size = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                size += len(part)
        writer.close()
        await listener.close()
        return size

    assert asyncio.run(read_late()) < 64 << 20
