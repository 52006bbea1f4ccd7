"""Tests of the checks of `[placement]` and `[clusters.NAME]` in a configuration.

The messages must name the key and its place in the file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.config.findings import Severity
from slurm_energy.validation import check_file
from slurm_energy.validation.host import Host, SlurmConf

HEAD = '[cluster]\nname = "east"\n'
WEST = '[clusters.west]\ncontroller_url = "http://ctl.west:6828"\n'
CASES = {
    "policy": (
        '[placement]\npolicy = "best"\n',
        "error",
        "placement.policy",
        "must be one of home, cheapest",
    ),
    "weight": ("[placement]\nweights = {money = 1}\n", "error", "placement.weights", "knows cost, energy"),
    "refresh": (WEST + "[placement]\nrefresh_s = 0\n", "error", "placement.refresh_s", "must be from 1"),
    "no other cluster": (
        "[placement]\nmax_delay_s = 60\n",
        "warning",
        "placement.max_delay_s",
        "has no effect: there is no other [clusters.NAME]",
    ),
    "weighted": (
        WEST + '[placement]\npolicy = "weighted"\n',
        "error",
        "placement.weights",
        "'weighted' needs it",
    ),
    "no url": ("[clusters.west]\nlatitude = 1\n", "error", "clusters.west.controller_url", "is missing"),
    "bad url": (
        '[clusters.west]\ncontroller_url = "https://west"\n',
        "error",
        "clusters.west.controller_url",
        "",
    ),
    "own url": (
        '[clusters.east]\ncontroller_url = "http://a:1"\n',
        "error",
        "clusters.east.controller_url",
        "is set by cluster.controller_url",
    ),
    "half a position": (WEST + "latitude = 50\n", "error", "clusters.west.longitude", "belong together"),
    "position": (
        WEST + "latitude = 91\nlongitude = 0\n",
        "error",
        "clusters.west.latitude",
        "must be from -90",
    ),
    "no position": (
        WEST + '[placement]\npolicy = "follow-the-sun"\n',
        "warning",
        "clusters.east.latitude",
        "'follow-the-sun' needs it",
    ),
    "unknown key": (WEST + "colour = 1\n", "error", "clusters.west.colour", "unknown key"),
    "no users": (WEST + "controller_users = []\n", "error", "clusters.west.controller_users", ""),
}


def findings(text: str, directory: Path) -> list[tuple[str, str, str]]:
    path = directory / "energy.toml"
    path.write_text(HEAD + text)
    host = Host(frozenset({"localhost"}), SlurmConf(Path("/etc/slurm.conf")))
    return [
        ("error" if one.severity is Severity.ERROR else "warning", one.key, one.why)
        for one in check_file(path, None, host).findings
    ]


@pytest.mark.parametrize("name", CASES)
def test_findings(name: str, tmp_path: Path) -> None:
    text, severity, key, message = CASES[name]
    assert [one for one in findings(text, tmp_path) if one[:2] == (severity, key) and message in one[2]]


def test_a_correct_file_has_no_finding_about_clusters(tmp_path: Path) -> None:
    text = WEST + '[clusters.east]\nbandwidth_mbit_per_s = 100\n[placement]\npolicy = "cleanest"\n'
    assert [one for one in findings(text, tmp_path) if "clusters" in one[1] or "placement" in one[1]] == []
