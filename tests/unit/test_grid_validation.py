"""Tests of the checks of the sections `[carbon]`, `[price]` and `[quota]`.

The message about a fault must name the key and its location.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.config.findings import Severity
from slurm_energy.validation import check_file
from slurm_energy.validation.host import Host, SlurmConf

pytestmark = pytest.mark.slow
ENTSOE = '[carbon]\nprovider = "entsoe"\nzone = "DE"\ntoken_file = "HERE/token"\n'
CASES = {
    "provider": ('[carbon]\nprovider = "entso"\n', "error", "carbon.provider", "must be one of yearly"),
    "price provider": ('[price]\nprovider = "uk"\n', "error", "price.provider", "must be one of off"),
    "zone": (ENTSOE.replace('"DE"', '"D E"'), "error", "carbon.zone", "must be a zone of the provider"),
    "no zone": (ENTSOE.replace('zone = "DE"\n', ""), "error", "carbon.zone", "'entsoe' needs it"),
    "no token": (ENTSOE.replace("token_file", "#"), "error", "carbon.token_file", "'entsoe' needs it"),
    "readable token": (ENTSOE.replace("token", "open"), "error", "carbon.open_file", "unknown key"),
    "token of all": (
        ENTSOE.replace("HERE/token", "HERE/open"),
        "error",
        "carbon.token_file",
        "no read permission for others",
    ),
    "missing token": (
        ENTSOE.replace("HERE/token", "HERE/none"),
        "error",
        "carbon.token_file",
        "No such file",
    ),
    "needless token": (
        '[carbon]\nprovider = "uk"\ntoken_file = "HERE/token"\n',
        "warning",
        "carbon.token_file",
        "has no effect: 'uk' needs no token",
    ),
    "url without tls": (
        '[carbon]\nprovider = "uk"\nurl = "http://grid.example"\n',
        "error",
        "carbon.url",
        "must be https",
    ),
    "url with password": (
        '[carbon]\nprovider = "uk"\nurl = "https://a:b@grid.example"\n',
        "error",
        "carbon.url",
        "must not contain a password",
    ),
    "country": ('[carbon]\ncountry = "XX"\n', "error", "carbon.country", "has no yearly factor"),
    "country name": ('[carbon]\ncountry = "Germany"\n', "error", "carbon.country", "ISO 3166-1"),
    "constant": ('[carbon]\nprovider = "constant"\n', "error", "carbon.g_per_kwh", "'constant' needs it"),
    "price constant": ('[price]\nprovider = "constant"\n', "error", "price.per_kwh", "'constant' needs it"),
    "negative": (
        '[carbon]\nprovider = "constant"\ng_per_kwh = -1\n',
        "error",
        "carbon.g_per_kwh",
        "must be from 0",
    ),
    "pue": ("[carbon]\npue = 0.9\n", "error", "carbon.pue", "must be from 1 to 10"),
    "user": ('[carbon]\nuser = "site"\n', "warning", "carbon.user", "has no effect"),
    "watttime user": (
        ENTSOE.replace("entsoe", "watttime"),
        "error",
        "carbon.user",
        "'watttime' needs it",
    ),
    "no file": ('[carbon]\nprovider = "csv"\n', "error", "carbon.file", "'csv' needs it"),
    "broken file": (
        '[carbon]\nprovider = "csv"\nfile = "HERE/broken.csv"\n',
        "error",
        "carbon.file",
        "broken.csv:2: 'x' is not a time",
    ),
    "file of the wrong unit": (
        '[price]\nprovider = "csv"\nfile = "HERE/carbon.csv"\n',
        "error",
        "price.file",
        "'g/kWh' is not a unit of price such as EUR/kWh",
    ),
    "needless file": ('[carbon]\nfile = "HERE/carbon.csv"\n', "warning", "carbon.file", "has no effect"),
    "refresh": ("[carbon]\nrefresh_s = 600\n", "warning", "carbon.refresh_s", "has no effect"),
    "too often": (
        '[carbon]\nprovider = "uk"\nrefresh_s = 1\n',
        "error",
        "carbon.refresh_s",
        "must be from 60",
    ),
    "embodied": ("[carbon]\nlifetime_years = 4\n", "warning", "carbon.lifetime_years", "has no effect"),
    "surcharge": (
        '[price]\nprovider = "constant"\nper_kwh = 0.2\nsurcharge_per_kwh = 0.1\n',
        "warning",
        "price.surcharge_per_kwh",
        "has no effect",
    ),
    "currency": ('[price]\ncurrency = "euro"\n', "error", "price.currency", "ISO 4217"),
    "zones": ('[carbon]\nother_zones = ["FR"]\n', "warning", "carbon.other_zones", "has no effect"),
    "time zone": ('[quota]\ntimezone = "Mars"\n', "error", "quota.timezone", "must be a time zone"),
}
RIGHT = (
    "",
    '[carbon]\ncountry = "DE"\npue = 1.3\nembodied_node_kg = 1500\nembodied_gpu_kg = 150\n',
    '[carbon]\nprovider = "uk"\nother_zones = ["3"]\nurl = "http://127.0.0.1:8080"\n',
    '[carbon]\nprovider = "csv"\nfile = "HERE/carbon.csv"\nmax_age_s = 7200\n',
    ENTSOE + 'country = "DE"\n[price]\nprovider = "constant"\nper_kwh = 0.25\ncurrency = "CHF"\n',
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text, mode in (
        ("token", "secret\n", 0o600),
        ("open", "secret\n", 0o644),
        ("carbon.csv", "time,g/kWh\n0,1\n60,2\n", 0o644),
        ("broken.csv", "time,g/kWh\nx,1\n", 0o644),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    return tmp_path


def findings(folder: Path, toml: str) -> list[str]:
    path = folder / "energy.toml"
    path.write_text('[cluster]\nname = "c1"\n' + toml.replace("HERE", str(folder)))
    path.chmod(0o644)
    host = Host(frozenset({"localhost"}), SlurmConf(Path("/etc/slurm.conf")))
    found = check_file(path, None, host).findings
    keys = ("carbon", "price", "quota", "[carbon]", "[price]", "[quota]")
    mine = [one for one in found if one.key.split(".")[0] in keys and one.severity is not Severity.UNCHECKED]
    assert all("secret" not in one.text for one in mine)
    return [one.line_with_severity for one in mine]


@pytest.mark.parametrize("name", CASES)
def test_wrong_keys(folder: Path, name: str) -> None:
    toml, severity, key, words = CASES[name]
    lines = findings(folder, toml)
    line = next((line for line in lines if f": {key}: " in line), None)
    assert line is not None and f": {severity}: " in line and words in line, lines
    assert line.startswith(f"{folder}/energy.toml:")


@pytest.mark.parametrize("toml", RIGHT)
def test_right_keys(folder: Path, toml: str) -> None:
    assert findings(folder, toml) == []
