"""Tests of the fetcher of carbon intensities and prices.

A local server answers with recorded and with hostile responses.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slurm_energy.accounting import grid_values
from slurm_energy.accounting.grid_values import SeriesKey
from slurm_energy.config import Config
from slurm_energy.config.loader import parse
from slurm_energy.controller.grid import grid_http
from slurm_energy.controller.grid.fetcher import (
    FIRST_BACK_OFF_S,
    MAX_BACK_OFF_S,
    REJECTED_PAUSE_S,
    GridFetcher,
    configured_series,
)
from slurm_energy.controller.grid.routes import GridRoutes
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError
from slurm_energy.grid.csv_series import iso_time, parse_time
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.log_once import RepeatedFailureLog

pytestmark = pytest.mark.slow
DATA = Path(__file__).parents[1] / "data" / "grid"
EIGHT = parse_time("2026-03-10T08:00Z")
NOW = parse_time("2026-03-10T10:10Z")
KWH = 3.6e6
USER, OPERATOR = Rights(1000, "alice", False), Rights(0, "root", True)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def recorded(name: str) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=(DATA / name).read_bytes())

    return handler


class Site:
    """Test environment for the fetcher of prices and carbon intensities.

    It contains a fake data provider on this host, a database, and the fetcher of a controller.
    """

    def __init__(self, folder: Path, handler: Handler, toml: str) -> None:
        self.handler, self.requests = handler, list[web.Request]()
        self.folder, self.toml, self.now = folder, toml, NOW
        self.log = Log()

    async def __aenter__(self) -> Site:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.runner.addresses[0][1]
        token = self.folder / "token"
        token.write_text("s3cret-token\n")
        token.chmod(0o600)
        self.config = self.configured(self.toml)
        self.store = Store(self.folder / "senergy.db")
        self.fetcher = GridFetcher(
            lambda: self.config, self.store, RepeatedFailureLog(self.log), clock=lambda: self.now
        )
        self.source = GridFactorSource(lambda: self.config, self.store)
        self.routes = GridRoutes(lambda: self.config, self.source, self.fetcher)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runner.cleanup()
        self.store.close()

    def configured(self, toml: str) -> Config:
        replaced = toml.replace("URL", f"http://127.0.0.1:{self.port}").replace("HERE", str(self.folder))
        return parse('[cluster]\nname = "c1"\n' + replaced)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.handler(request)

    async def fetch(self) -> dict[str, Any]:
        for series in configured_series(self.config):
            await self.fetcher.fetch(series)
        return self.fetcher.status()[0]

    def pause_s(self) -> float:
        """Return the seconds until the fetcher's next query to the provider of the first series."""
        return next(iter(self.fetcher._states.values())).due_s - time.monotonic()


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, text: str, *args: object, **_: object) -> None:
        self.lines.append(text % args if args else text)

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda text, *args, **more: self.log(0, text, *args)


UK = '[carbon]\nprovider = "uk"\nurl = "URL"\n'
MAPS = '[carbon]\nprovider = "electricitymaps"\nzone = "DE"\nurl = "URL"\ntoken_file = "HERE/token"\n'
PRICES = (
    '[price]\nprovider = "entsoe"\nzone = "10Y1001A1001A82H"\nurl = "URL"\ntoken_file = "HERE/token"\n'
    "surcharge_per_kwh = 0.1\n"
)


def run(folder: Path, handler: Handler, toml: str, test: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Site(folder, handler, toml) as site:
            await test(site)

    asyncio.run(main())


def test_fetched_values_become_grams(tmp_path: Path) -> None:
    """Two fetched half-hour values of carbon intensity yield the right emissions.

    A job uses 1 kWh from 08:00 to 09:00. The values are 263 and 271 g/kWh, so their mean is 267 g/kWh. With
    a power usage effectiveness (PUE) of 1.5 the emissions are 400.5 g.
    """

    async def test(site: Site) -> None:
        status = await site.fetch()
        assert (status["error"], status["newest_end"]) == (None, EIGHT + 3600.0)
        factors = await site.source.factors(EIGHT, EIGHT + 3600.0)
        result = factors.footprint([(EIGHT, EIGHT + 3600.0, KWH)])
        assert result.grams == pytest.approx(400.5)
        assert result.basis == "CO2e: uk GB, every 30 min; PUE 1.5"
        later = factors.footprint([(EIGHT + 3600.0, EIGHT + 7200.0, KWH)])
        assert later.grams == pytest.approx(1.5 * 237.589)  # the yearly factor: the provider has no value
        assert "yearly GB (2023" in later.basis

    run(tmp_path, recorded("uk_intensity.json"), UK + 'pue = 1.5\ncountry = "GB"\n', test)


def test_prices_with_surcharge_become_money(tmp_path: Path) -> None:
    """The cost of electricity is the fetched price plus the configured fee.

    1 kWh at 95.5 EUR/MWh with a fee of 0.10 EUR/kWh costs 0.1955 EUR.
    """

    async def test(site: Site) -> None:
        status = await site.fetch()
        assert status["error"] is None
        factors = await site.source.factors(EIGHT, EIGHT + 3600.0)
        result = factors.footprint([(EIGHT, EIGHT + 3600.0, KWH)])
        assert result.cost_amount == pytest.approx(0.1955)
        assert result.basis.startswith("cost: entsoe 10Y1001A1001A82H (day-ahead, plus 0.1 EUR/kWh), hourly")
        assert site.requests[0].query["periodEnd"] > "202603112200"  # day-ahead prices lie in the future

    run(tmp_path, recorded("entsoe_prices.xml"), PRICES, test)


def test_the_token_comes_from_its_file_and_is_never_shown(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401, text=f"bad token {request.headers.get('auth-token')}")

    async def test(site: Site) -> None:
        status = await site.fetch()
        assert site.requests[0].headers["auth-token"] == "s3cret-token"
        assert "HTTP status 401: check the token" in status["error"]
        assert "s3cret" not in json.dumps(site.fetcher.status()) + "".join(site.log.lines)
        assert site.pause_s() > REJECTED_PAUSE_S - 60
        site.config = site.configured(MAPS.replace("URL", "http://127.0.0.1:1"))  # nothing listens there
        status = await site.fetch()
        assert status["error"] and "s3cret" not in status["error"]
        (tmp_path / "token").chmod(0o644)
        assert "no read permission for others" in (await site.fetch())["error"]
        (tmp_path / "token").chmod(0o600)
        (tmp_path / "token").write_text("\n")
        assert "has no token" in (await site.fetch())["error"]
        (tmp_path / "token").unlink()
        assert "No such file" in (await site.fetch())["error"]

    run(tmp_path, refuse, MAPS, test)


def test_a_token_that_the_provider_repeats_is_not_shown(tmp_path: Path) -> None:
    async def repeat(request: web.Request) -> web.Response:
        text = (DATA / "entsoe_no_data.xml").read_text()
        return web.Response(
            text=text.replace("No matching data", f"Refused: {request.query['securityToken']}")
        )

    async def test(site: Site) -> None:
        error = (await site.fetch())["error"]
        assert error.startswith("price: entsoe 10Y1001A1001A82H: Refused: ***")
        assert "s3cret" not in "".join(site.log.lines)

    run(tmp_path, repeat, PRICES, test)


def test_a_login_gives_the_token_of_the_request(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        name = "watttime_login.json" if request.path == "/login" else "watttime_historical.json"
        return web.Response(body=(DATA / name).read_bytes())

    async def test(site: Site) -> None:
        assert (await site.fetch())["error"] is None
        assert [request.path for request in site.requests] == ["/login", "/v3/historical"]
        assert site.requests[1].headers["Authorization"] == "Bearer recorded.token.of-a-test"
        factors = await site.source.factors(EIGHT, EIGHT + 300.0)
        assert "watttime CAISO_NORTH (marginal)" in factors.footprint([(EIGHT, EIGHT + 300.0, 1.0)]).basis

    toml = '[carbon]\nprovider = "watttime"\nzone = "CAISO_NORTH"\nuser = "site"\n'
    run(tmp_path, handler, toml + 'url = "URL"\ntoken_file = "HERE/token"\n', test)


def test_failures_back_off_and_keep_the_last_values(tmp_path: Path) -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async def test(site: Site) -> None:
        await site.fetch()
        site.handler, site.now = fail, NOW + 86400.0
        pauses = []
        for _ in range(14):
            status = await site.fetch()
            pauses.append(site.pause_s())
        assert status["failures"] == 14 and status["error"] == "carbon: uk GB: HTTP status 500"
        assert pauses[0] == pytest.approx(FIRST_BACK_OFF_S, abs=30)
        assert pauses[-1] == pytest.approx(MAX_BACK_OFF_S, abs=30)
        assert all(one <= other + 1 for one, other in pairwise(pauses))
        factors = await site.source.factors(EIGHT, EIGHT + 1800.0)
        assert factors.footprint([(EIGHT, EIGHT + 1800.0, KWH)]).grams == pytest.approx(263.0)
        assert len(site.log.lines) == 1  # the same failure is logged once
        site.handler = recorded("uk_intensity.json")
        assert (await site.fetch())["failures"] == 0

    run(tmp_path, recorded("uk_intensity.json"), UK, test)


def test_rate_limits_are_kept(tmp_path: Path) -> None:
    async def limited(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "1800"})

    async def test(site: Site) -> None:
        assert "too many requests" in (await site.fetch())["error"]
        assert site.pause_s() > 1700

    run(tmp_path, limited, UK, test)


async def _redirect(_: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:9/elsewhere")


async def _huge(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"[" * 65536)
    except ConnectionError:
        return response


async def _slow(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)
    except ConnectionError:
        return response


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"data": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def _gzip(_: web.Request) -> web.Response:
    return web.Response(body=b"\x1f\x8b" + b"\0" * 100, headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (_redirect, "redirects are refused"),
        (_huge, "the response is longer than"),
        (_slow, "no whole response within"),
        (_cut, ""),
        (_gzip, "is not JSON"),
    ],
)
def test_hostile_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Handler, words: str
) -> None:
    monkeypatch.setattr(grid_http, "MAX_BODY_BYTES", 1 << 20)
    if handler is _slow:
        monkeypatch.setattr(grid_http, "TIMEOUT_S", 0.3)

    async def test(site: Site) -> None:
        status = await site.fetch()
        assert words in status["error"] and status["failures"] == 1
        assert "\n" not in status["error"]
        factors = await site.source.factors(EIGHT, EIGHT + 1800.0)
        assert factors.footprint([(EIGHT, EIGHT + 1800.0, KWH)]).grams is None

    run(tmp_path, handler, UK, test)


def test_an_invalid_certificate_is_refused(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True, timeout=60
    )

    async def test(site: Site) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        secure = web.TCPSite(site.runner, "127.0.0.1", 0, ssl_context=context)
        await secure.start()
        port = site.runner.addresses[1][1]
        site.config = site.configured(UK.replace("URL", f"https://127.0.0.1:{port}"))
        status = await site.fetch()
        assert "the certificate of the server is not valid" in status["error"]
        assert not site.requests

    run(tmp_path, recorded("uk_intensity.json"), UK, test)


def test_several_zones_and_only_configured_ones(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        await site.fetch()
        assert [one["zone"] for one in site.fetcher.status()] == ["GB", "3"]
        query = {"start": repr(EIGHT), "end": repr(EIGHT + 3600.0)}
        answer = await site.routes.factors({**query, "zone": "3"}, USER)
        assert answer["zones"] == ["GB", "3"]
        assert GridFactors.from_json(answer).footprint([(EIGHT, EIGHT + 60.0, KWH)]).grams == 44.0
        with pytest.raises(NotFoundError, match="configured: GB, 3"):
            await site.routes.factors({**query, "zone": "5"}, USER)

    async def handler(request: web.Request) -> web.Response:
        name = "uk_regional.json" if "regional" in request.path else "uk_intensity.json"
        return web.Response(body=(DATA / name).read_bytes())

    run(tmp_path, handler, UK + 'other_zones = ["3"]\n', test)


def test_only_operators_fetch_at_once_and_not_too_often(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        with pytest.raises(ForbiddenError):
            await site.routes.fetch({}, USER)
        answer = await site.routes.fetch({}, OPERATOR)
        assert answer["series"][0]["error"] is None
        asked = len(site.requests)
        await site.routes.fetch({}, OPERATOR)
        assert len(site.requests) == asked

    run(tmp_path, recorded("uk_intensity.json"), UK, test)


class British:
    """Fake server of the British provider, with values for each half hour from `since` on.

    If `refuses` is true, a request for times before `since` gets status 403.
    """

    def __init__(self, since: float, *, refuses: bool = False) -> None:
        self.since, self.refuses = since, refuses
        self.asked: list[str] = []

    async def __call__(self, request: web.Request) -> web.Response:
        self.asked.append(request.path.removeprefix("/intensity/"))
        first, last = map(parse_time, self.asked[-1].split("/"))
        if self.refuses and first < self.since:
            return web.Response(status=403)
        times = [first + 1800.0 * step for step in range(int((last - first) / 1800.0))]
        rows = [
            {"from": iso_time(t), "to": iso_time(t + 1800.0), "intensity": {"actual": 100, "forecast": 1}}
            for t in times
            if t >= self.since
        ]
        return web.json_response({"data": rows})


def test_the_next_round_asks_only_for_what_may_have_changed(tmp_path: Path) -> None:
    british = British(0.0)

    async def test(site: Site) -> None:
        await site.fetch()
        assert british.asked == [
            "2026-03-09T10:00Z/2026-03-10T11:00Z",
            "2026-02-24T10:00Z/2026-03-09T10:00Z",
            "2026-02-11T10:00Z/2026-02-24T10:00Z",
            "2026-02-08T10:00Z/2026-02-11T10:00Z",
        ]
        site.now += 3600.0
        await site.fetch()
        assert british.asked[4:] == ["2026-03-10T05:00Z/2026-03-10T12:00Z"]  # the newest less 6 h
        fresh = GridFetcher(
            lambda: site.config, site.store, RepeatedFailureLog(site.log), clock=lambda: site.now
        )
        await fresh.fetch(configured_series(site.config)[0])
        assert len(british.asked) == 6  # after a restart nothing is missing
        site.now += 20 * 86400.0  # senergyctld was off for 20 days
        await site.fetch()
        assert [one.split("T")[0] for one in british.asked[6:]] == ["2026-03-10", "2026-03-23"]

    run(tmp_path, british, UK + "backfill_days = 30\n", test)


@pytest.mark.parametrize("refuses", [False, True])
def test_empty_and_refused_older_times_do_not_prevent_recent_values(tmp_path: Path, refuses: bool) -> None:
    british = British(NOW - 30 * 3600.0, refuses=refuses)

    async def test(site: Site) -> None:
        status = await site.fetch()
        assert status["error"] is None and status["newest_end"] is not None
        asked = len(british.asked)
        assert asked == (2 if refuses else 41)
        site.now += 900.0
        await site.fetch()
        assert len(british.asked) - asked == (1 if refuses else 41)

    run(tmp_path, british, UK + "backfill_days = 3660\n", test)


def test_values_outside_of_the_asked_time_are_not_stored(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        site.now = NOW + 30 * 86400.0
        assert "no values" in (await site.fetch())["error"]
        assert (await site.fetch())["newest_end"] is None

    run(tmp_path, recorded("uk_intensity.json"), UK, test)


def test_csv_file_is_read_again_when_it_changes_and_kept_when_it_breaks(tmp_path: Path) -> None:
    path = tmp_path / "carbon.csv"
    path.write_text("time,g/kWh\n2026-03-10T08:00Z,100\n2026-03-10T09:00Z,200\n")
    path.chmod(0o644)

    async def test(site: Site) -> None:
        async def grams() -> float | None:
            factors = await site.source.factors(EIGHT, EIGHT + 3600.0)
            assert factors.carbon is not None and factors.carbon.series is not None
            return factors.footprint([(EIGHT, EIGHT + 3600.0, KWH)]).grams

        assert await grams() == pytest.approx(100.0)
        path.write_text("time,kg/MWh\n2026-03-10T08:00Z,150\n2026-03-10T09:00Z,200.5\n")
        assert await grams() == pytest.approx(150.0)
        path.write_text("rubbish")
        assert await grams() == pytest.approx(150.0)
        fresh = GridFactorSource(lambda: site.config, site.store)
        with pytest.raises(UnavailableError, match="first column"):
            await fresh.factors(EIGHT, EIGHT + 3600.0)
        assert site.fetcher.status() == []

    run(tmp_path, _slow, '[carbon]\nprovider = "csv"\nfile = "HERE/carbon.csv"\n', test)


@pytest.mark.parametrize(
    ("toml", "grams", "basis"),
    [
        ("", None, ""),
        ('[carbon]\ncountry = "FR"\n', 56.039, "CO2e: yearly FR (2023, Our World in Data); without PUE"),
        (
            '[carbon]\nprovider = "constant"\ng_per_kwh = 45\npue = 2\n',
            90.0,
            "CO2e: constant (configured); PUE 2",
        ),
        ('[carbon]\nprovider = "off"\ncountry = "FR"\n', None, ""),
        (
            '[carbon]\nprovider = "off"\n[price]\nprovider = "constant"\nper_kwh = 0.5\n',
            None,
            "cost: constant",
        ),
    ],
)
def test_sources_without_network(tmp_path: Path, toml: str, grams: float | None, basis: str) -> None:
    async def test(site: Site) -> None:
        result = (await site.source.factors(EIGHT, EIGHT + 1.0)).footprint([(EIGHT, EIGHT + 1.0, KWH)])
        assert result.grams == (None if grams is None else pytest.approx(grams))
        assert result.basis.startswith(basis) and bool(result.basis) == bool(basis)

    run(tmp_path, _slow, toml, test)


def test_long_windows_have_hourly_means_and_the_same_sum(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        key = SeriesKey("c1", "carbon", "uk", "GB", "g/kWh")
        start = EIGHT - 200 * 86400.0
        samples = [(start + i * 1800.0, start + (i + 1) * 1800.0, float(i % 7)) for i in range(200 * 48)]
        samples[5000:5003] = []
        await site.store.write(grid_values.save_samples, key, samples, NOW)
        factors = await site.source.factors(start, EIGHT)
        assert factors.carbon is not None and factors.carbon.series is not None
        series = factors.carbon.series
        assert series.resolution_s == 3600.0 and len(series.samples) < 201 * 24
        whole, expected = series.integrate(start, EIGHT), sum(v for *_, v in samples) * 1800.0
        assert whole.value_seconds == pytest.approx(expected)
        assert whole.known_s == pytest.approx((200 * 48 - 3) * 1800.0)

    run(tmp_path, _slow, UK, test)


def test_stored_samples_replace_each_other_and_are_dropped_when_old(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        key = SeriesKey("c1", "carbon", "uk", "GB", "g/kWh")
        other = SeriesKey("c2", "carbon", "uk", "GB", "g/kWh")
        for one in (key, other):
            await site.store.write(grid_values.save_samples, one, [(0.0, 60.0, 1.0), (60.0, 120.0, 2.0)], 5.0)
        await site.store.write(grid_values.save_samples, key, [(60.0, 120.0, 3.0)], 6.0)
        read = site.store.read
        assert await read(grid_values.read_samples, key, 0.0, 200.0) == [(0.0, 60.0, 1.0), (60.0, 120.0, 3.0)]
        assert await read(grid_values.read_samples, other, 90.0, 200.0) == [(60.0, 120.0, 2.0)]
        await site.store.write(grid_values.drop_before, "price", 1e9)
        await site.store.write(grid_values.drop_before, "carbon", 61.0)
        assert await read(grid_values.read_samples, key, 0.0, 200.0) == [(60.0, 120.0, 3.0)]
        assert await read(grid_values.newest_end, key) == 120.0

    run(tmp_path, _slow, "", test)
