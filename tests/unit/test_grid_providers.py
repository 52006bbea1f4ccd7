"""Tests of the providers of carbon intensities and prices.

The tests check the requests, recorded responses, malformed responses and hostile responses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.config.grid_tables import CARBON_PROVIDERS, LOCAL_PROVIDERS, PRICE_PROVIDERS
from slurm_energy.grid.csv_series import parse_time
from slurm_energy.grid.providers import PROVIDERS, provider_of
from slurm_energy.grid.providers.base import GridProvider, ProviderResponseError, SeriesQuery
from slurm_energy.grid.series import Sample
from slurm_energy.grid.units import GridQuantity

DATA = Path(__file__).parents[1] / "data" / "grid"
CARBON, PRICE = GridQuantity.CARBON, GridQuantity.PRICE
EIGHT = parse_time("2026-03-10T08:00Z")
NOW = parse_time("2026-03-10T12:00Z")
QUERY = SeriesQuery("DE", EIGHT, EIGHT + 7200.0, "https://grid.example")


def provider(quantity: GridQuantity, name: str) -> GridProvider:
    found = provider_of(quantity, name)
    assert found is not None
    return found


def minutes(*rows: tuple[float, float, float]) -> list[Sample]:
    """Return samples from rows of (start, end, value), with start and end in minutes after 08:00."""
    return [(EIGHT + a * 60.0, EIGHT + b * 60.0, value) for a, b, value in rows]


RECORDED = [
    (CARBON, "electricitymaps", "electricitymaps_history.json", minutes((0, 60, 302.0), (60, 120, 288.0))),
    (CARBON, "rte", "rte_records.json", minutes((0, 15, 21.0), (15, 30, 22.0), (30, 45, 24.0))),
    (CARBON, "uk", "uk_intensity.json", minutes((0, 30, 263.0), (30, 60, 271.0))),
    (CARBON, "uk", "uk_regional.json", minutes((0, 30, 44.0), (30, 60, 47.0))),
    # 1000 lb/MWh = 453.59237 g/kWh
    (CARBON, "watttime", "watttime_historical.json", minutes((0, 5, 453.59237), (5, 10, 394.6253619))),
    # (490 x 1000 + 11 x 3000) / 4000 = 130.75; (490 + 11) / 2 = 250.5
    (CARBON, "entsoe", "entsoe_generation.xml", minutes((0, 60, 130.75), (60, 120, 250.5))),
    # 95.5 EUR/MWh = 0.0955 EUR/kWh; position 3 is that of position 2 (curve type A03)
    (
        PRICE,
        "entsoe",
        "entsoe_prices.xml",
        minutes((0, 60, 0.0955), (60, 120, -0.01025), (120, 180, -0.01025), (180, 240, 0.04)),
    ),
    (PRICE, "entsoe", "entsoe_no_data.xml", []),
    (CARBON, "entsoe", "entsoe_no_data.xml", []),
]


@pytest.mark.parametrize(("quantity", "name", "file", "expected"), RECORDED)
def test_recorded_responses(quantity: GridQuantity, name: str, file: str, expected: Sequence[Sample]) -> None:
    samples = provider(quantity, name).samples((DATA / file).read_bytes(), QUERY)
    assert [sample[:2] for sample in samples] == [sample[:2] for sample in expected]
    assert [sample[2] for sample in samples] == pytest.approx([sample[2] for sample in expected], rel=1e-12)


def test_past_range_of_electricity_maps() -> None:
    maps = provider(CARBON, "electricitymaps")
    samples = maps.samples((DATA / "electricitymaps_past_range.json").read_bytes(), QUERY)
    assert [sample[2] for sample in samples] == [310.0, 312.0]


def test_each_provider_in_the_configuration_exists_and_no_other() -> None:
    names = {(CARBON, name) for name in CARBON_PROVIDERS} | {(PRICE, name) for name in PRICE_PROVIDERS}
    assert {key for key in names if key[1] not in LOCAL_PROVIDERS} == set(PROVIDERS)
    assert all(one.default_url.startswith("https://") for one in PROVIDERS.values())


def test_requests_as_the_providers_document_them() -> None:
    maps = provider(CARBON, "electricitymaps").request(QUERY, "secret", NOW)
    assert maps.url == "https://grid.example/v3/carbon-intensity/history?zone=DE"
    assert maps.headers == {"auth-token": "secret"}
    old = provider(CARBON, "electricitymaps").request(QUERY, "secret", NOW + 90 * 86400.0)
    assert parse_qs(urlsplit(old.url).query)["start"] == ["2026-03-10T08:00:00Z"]
    assert urlsplit(old.url).path == "/v3/carbon-intensity/past-range"

    rte = parse_qs(urlsplit(provider(CARBON, "rte").request(QUERY, "", NOW).url).query)
    assert "date_heure >= date'2026-03-10T08:00:00Z'" in rte["where"][0]
    assert rte["limit"] == ["100"]

    uk = provider(CARBON, "uk")
    assert uk.request(QUERY, "", NOW).url == (
        "https://grid.example/intensity/2026-03-10T08:00Z/2026-03-10T10:00Z"
    )
    region = SeriesQuery("3", EIGHT, EIGHT + 3600.0, "https://grid.example")
    assert uk.request(region, "", NOW).url.endswith("/2026-03-10T09:00Z/regionid/3")

    prices = parse_qs(urlsplit(provider(PRICE, "entsoe").request(QUERY, "secret", NOW).url).query)
    assert prices["documentType"] == ["A44"] and prices["periodStart"] == ["202603100800"]
    assert prices["securityToken"] == ["secret"] and prices["in_Domain"] == prices["out_Domain"] == ["DE"]


def test_login_of_watttime() -> None:
    watttime = provider(CARBON, "watttime")
    login = watttime.login_request("https://grid.example", "site", "pass word")
    assert login.url == "https://grid.example/login"
    assert login.headers == {"Authorization": "Basic c2l0ZTpwYXNzIHdvcmQ="}
    token = watttime.login_token((DATA / "watttime_login.json").read_bytes())
    assert watttime.request(QUERY, token, NOW).headers == {"Authorization": f"Bearer {token}"}
    for bad in (b"{}", b'{"token": ""}', b'{"token": 5}', b'{"token": "a\\nX: y"}', b"<html>"):
        with pytest.raises(ProviderResponseError):
            watttime.login_token(bad)


def test_requests_do_not_show_the_token() -> None:
    for one in PROVIDERS.values():
        assert "secret" not in repr(one.request(QUERY, "secret", NOW))


MALFORMED = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"<html><body>Service unavailable</body></html>",
    b'{"data": 5, "history": 5, "results": 5}',
    b'{"data": [5], "history": [5], "results": [5]}',
    b'{"data": [{}], "history": [{}], "results": [{"taux_co2": 5}], "meta": {"units": "lbs_co2_per_mwh"}}',
    b'{"data": {"data": {"data": []}}, "history": null, "results": {}}',
    b"\xff\xfe<\x00a\x00/\x00>\x00",
    b"[" * 200_000,
    b"{" * 200_000,
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
@pytest.mark.parametrize("one", PROVIDERS.values(), ids=lambda one: f"{one.quantity}-{one.name}")
def test_malformed_responses_are_one_line(one: GridProvider, body: bytes) -> None:
    if one.name == "uk" and body == MALFORMED[7]:
        body = b'{"data": [{"from": "x", "to": "y"}]}'
    with pytest.raises(ProviderResponseError) as caught:
        one.samples(body, QUERY)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@given(st.binary(max_size=400) | st.sampled_from(sorted(DATA.glob("*"))).map(lambda path: path.read_bytes()))
def test_any_response_gives_samples_or_a_provider_error(body: bytes) -> None:
    for one in PROVIDERS.values():
        try:
            samples = one.samples(body, QUERY)
        except ProviderResponseError:
            continue
        assert all(start < end for start, end, _ in samples)


XML = (DATA / "entsoe_prices.xml").read_text()
BOMB = """<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "boom"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
<Publication_MarketDocument><mRID>&c;</mRID></Publication_MarketDocument>"""
EXTERNAL = """<!DOCTYPE a SYSTEM "file:///etc/passwd"><Publication_MarketDocument/>"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "DTD"),
        (EXTERNAL, "DTD"),
        ("<a>" * 200 + "</a>" * 200, "nested too deeply"),
        (XML.replace("EUR", "CZK"), "prices are in CZK/MWH, not in EUR/MWh"),
        (XML.replace("PT60M", "P1M"), "unknown resolution"),
        (XML.replace("PT60M", "PT0M"), "unknown resolution"),
        (XML.replace("<position>2", "<position>9"), "outside of its period"),
        (XML.replace("<position>2", "<position>1"), "occurs twice"),
        (XML.replace("<position>2", "<position>-2"), "malformed"),
        (XML.replace("-10.25", "NaN"), "malformed"),
        (XML.replace("-10.25", "1e9"), "malformed"),
        (XML.replace("-10.25", "99999999999"), "must be a price"),
        (XML.replace("2026-03-10T12:00Z", "9999-03-10T12:00Z"), "no plausible length"),
        (XML.replace("2026-03-10T12:00Z", "2025-03-10T12:00Z"), "no plausible length"),
        (XML.replace("Publication_Market", "Other_Market"), "not a Publication_MarketDocument"),
        (XML[:-30], "not XML"),
    ],
)
def test_hostile_xml_of_entsoe(text: str, words: str) -> None:
    with pytest.raises(ProviderResponseError, match=words):
        provider(PRICE, "entsoe").samples(text.encode(), QUERY)


def test_refusals_of_entsoe_are_told() -> None:
    refused = (DATA / "entsoe_no_data.xml").read_text().replace("No matching data found", "Too many")
    with pytest.raises(ProviderResponseError, match="Too many"):
        provider(PRICE, "entsoe").samples(refused.encode(), QUERY)


def test_the_finest_product_of_the_first_auction_holds() -> None:
    text = XML.replace("position>2</classification", "position>1</classification")
    samples = provider(PRICE, "entsoe").samples(text.encode(), QUERY)
    assert [value for _, _, value in samples[:4]] == pytest.approx([0.999, 0.999, 0.0955, 0.0955])


def test_a_mix_that_lacks_a_type_is_unknown() -> None:
    """The carbon intensity of a time is unknown if a type of generation has no value at this time.

    In the test, the generation from gas is reported for the second hour only. The first hour therefore has
    no carbon intensity, although the generation from wind is known.
    """
    text = (DATA / "entsoe_generation.xml").read_text()
    gas = "<start>2026-03-10T08:00Z</start><end>2026-03-10T10:00Z</end>"
    late = gas.replace("T08", "T09")
    samples = provider(CARBON, "entsoe").samples(text.replace(gas, late, 1).encode(), QUERY)
    assert samples == [(EIGHT + 3600.0, EIGHT + 7200.0, pytest.approx(250.5))]


def test_a_mix_with_much_generation_of_unknown_emissions_is_unknown() -> None:
    text = (DATA / "entsoe_generation.xml").read_text().replace("B04", "B20")
    assert provider(CARBON, "entsoe").samples(text.encode(), QUERY) == []


def test_types_with_different_steps_are_added_per_step() -> None:
    """Powers of generation types with different time steps are added on the shortest time step.

    In the test, the power of wind is given every hour and that of gas every 30 minutes. The result has a
    value for every 30 minutes, in which both powers are added.
    """
    text = (DATA / "entsoe_generation.xml").read_text().replace("PT60M", "PT30M", 1)
    samples = provider(CARBON, "entsoe").samples(text.encode(), QUERY)
    assert [value for _, _, value in samples] == pytest.approx([130.75, 130.75, 250.5, 250.5])


def test_units_of_watttime_are_checked() -> None:
    body = json.loads((DATA / "watttime_historical.json").read_text())
    body["meta"]["units"] = "percentile"
    with pytest.raises(ProviderResponseError, match="unit"):
        provider(CARBON, "watttime").samples(json.dumps(body).encode(), QUERY)


def test_negative_carbon_intensities_are_refused() -> None:
    body = (DATA / "uk_intensity.json").read_text().replace("263", "-263")
    with pytest.raises(ProviderResponseError, match="must be a carbon intensity"):
        provider(CARBON, "uk").samples(body.encode(), QUERY)
