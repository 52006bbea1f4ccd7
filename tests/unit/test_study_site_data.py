"""Tests of the jobs and the energy that a study reads from a running site.

Jobs come from sacct and from energy records. The energy of nodes is hourly. Either source may be missing,
and hours may have gaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import pytest
import usage_examples
from fake_controller import FakeController
from report_examples import START, answer, component, job_info, record

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.slurm.command import Command, CommandFailedError
from slurm_energy.study.data.site_data import read_site

HOUR = 3600
BEGIN = START // HOUR * HOUR
TUNING = {
    "mode": "on",
    "objective": "energy",
    "chosen": {"gpu_cap_watts": 250.0},
    "points": [
        {"point": {}, "time_ratio": 1.0, "power_ratio": 1.0, "source": "this run"},
        {"point": {"gpu_cap_watts": 250.0}, "time_ratio": 1.25, "power_ratio": 0.7, "source": "this run"},
    ],
}
ROW = {
    "JobID": "11",
    "JobIDRaw": "11",
    "JobName": "gemm",
    "User": "alice",
    "Account": "physics",
    "Partition": "cpu",
    "State": "COMPLETED",
    "NNodes": "1",
    "AllocCPUS": "64",
    "AllocTRES": "cpu=64,gres/gpu=2,node=1",
    "Submit": f"{START - 5:.0f}",
    "Start": f"{START:.0f}",
    "End": f"{START + 40:.0f}",
    "TimelimitRaw": "60",
    "ConsumedEnergyRaw": "0",
    "Cluster": "lab",
    "DBIndex": "1",
    "UID": "1001",
    "NodeList": "n1",
}


def sacct(*rows: Mapping[str, str]) -> Any:
    """Return a substitute for the sacct command that prints the given rows."""

    def run(command: Command) -> str:
        options = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
        fields, mark = options["format"].split(","), options["delimiter"]
        return "".join("".join(row[name] + mark for name in fields) + "\n" for row in rows)

    return run


def without_accounting(command: Command) -> str:
    raise CommandFailedError("sacct", ["error: Slurm accounting storage is disabled"], 1)


class Site(FakeController):
    """Stand-in for senergyctld of a cluster with four nodes.

    It reports 3.6 MJ of idle energy for each hour of the requested time window. The first hour has no
    energy.
    """

    missing_s = 0.0

    def __init__(self, *records: dict[str, Any], meter: bool = True) -> None:
        nodes = {"nodes": [{"node": f"n{number}"} for number in range(4)]}
        super().__init__({"/v1/records": {"scope": "all", "records": list(records)}, "/v1/nodes": nodes})
        self._meter = meter

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        if path != "/v1/usage":
            return super().get(path, params)
        document = usage_examples.response(params or {}, meter_visible=self._meter)
        rows = [usage_examples.row("idle", 3.6e6, number) for number in range(1, len(document["intervals"]))]
        missing = [{"cluster": "c", "interval": 1, "node_seconds": self.missing_s}]
        return document | {"rows": rows, "missing_node_seconds": missing}


def site(*records: dict[str, Any], meter: bool = True) -> ControllerClient:
    return cast("ControllerClient", Site(*records, meter=meter))


def test_jobs_of_sacct_get_the_energy_of_their_records() -> None:
    records = answer(record(11, tuning=TUNING), job_info(11))
    earlier = ROW | {"Start": f"{START - 5000:.0f}", "End": f"{START - 4000:.0f}", "State": "NODE_FAIL"}
    pending = ROW | {"JobID": "12_3", "JobIDRaw": "12", "Start": "Unknown", "End": "Unknown"}
    data = read_site(site(records), BEGIN, BEGIN + 2 * HOUR, sacct(ROW, earlier, pending))
    jobs = data.jobs.jobs
    assert jobs.job_id.tolist() == ["11", "11", "12_3"]
    assert jobs.energy_joules.tolist() == pytest.approx([17600.0, math.nan, math.nan], nan_ok=True)
    assert jobs.speed.tolist() == pytest.approx([0.8, math.nan, math.nan], nan_ok=True)
    assert (jobs.gpus[0], jobs.time_limit_s[0], jobs.submit_s[0]) == (2, 3600, START - 5)
    assert math.isnan(jobs.start_s[2])
    assert data.jobs.notes == []


def test_each_run_of_a_quickly_requeued_job_gets_its_own_energy() -> None:
    records, rows = [], []
    for number, joules in enumerate((1000.0, 2000.0, 3000.0)):
        times = {"start": START + 100 * number, "end": START + 100 * number + 40}
        parts = (component("cpu", joules),)
        one = record(11, components=parts, restart_count=number, **times)
        records.append(answer(one, job_info(11, **times)))
        start_s, end_s = times["start"] + 2, times["end"]  # slurmctld's clock is ahead of the node's
        rows.append(ROW | {"Start": f"{start_s:.0f}", "End": f"{end_s:.0f}"})
    unrecorded = ROW | {"Start": f"{START + 300:.0f}", "End": f"{START + 340:.0f}"}
    jobs = read_site(site(*records), BEGIN, BEGIN + 2 * HOUR, sacct(*rows, unrecorded)).jobs.jobs
    assert jobs.energy_joules.tolist() == pytest.approx([1000.0, 2000.0, 3000.0, math.nan], nan_ok=True)


def test_the_energy_of_nodes_is_hourly_and_gaps_are_unknown() -> None:
    data = read_site(site(), BEGIN, BEGIN + 2 * HOUR, sacct(ROW))
    assert data.energy is not None
    assert data.energy.joules.tolist() == pytest.approx([math.nan, 3.6e6], nan_ok=True)
    assert data.energy.start_s.tolist() == [BEGIN, BEGIN + HOUR]


@pytest.mark.parametrize(("missing_s", "is_known"), [(0.02 * 4 * HOUR, True), (0.03 * 4 * HOUR, False)])
def test_an_hour_in_which_nodes_are_missing_is_unknown(missing_s: float, is_known: bool) -> None:
    controller = Site()
    controller.missing_s = missing_s
    client = cast("ControllerClient", controller)
    energy = read_site(client, BEGIN, BEGIN + 3 * HOUR, sacct(ROW)).energy
    assert energy is not None
    assert [not math.isnan(value) for value in energy.joules] == [False, is_known, True]


def test_users_who_are_no_operators_see_no_idle_energy() -> None:
    data = read_site(site(meter=False), BEGIN, BEGIN + 2 * HOUR, sacct(ROW))
    assert data.energy is None
    assert "only operators see it" in data.jobs.notes[0]


def test_energy_of_sacct_counts_without_a_record() -> None:
    data = read_site(site(), BEGIN, BEGIN + 2 * HOUR, sacct(ROW | {"ConsumedEnergyRaw": "5000"}))
    assert data.jobs.jobs.energy_joules.tolist() == [5000.0]


def test_records_suffice_without_accounting() -> None:
    two = [answer(record(11, node), job_info(11, nodes=2)) for node in ("n1", "n2")]
    part = answer(record(12, components=(component("cpu", 5.0),)), job_info(12, nodes=2))
    data = read_site(site(*two, part), BEGIN, BEGIN + 2 * HOUR, without_accounting)
    jobs = data.jobs.jobs
    assert jobs.nodes.tolist() == [2, 2]
    assert jobs.energy_joules.tolist() == pytest.approx([35200.0, math.nan], nan_ok=True)
    assert "jobs without an energy record are missing" in data.jobs.notes[0]


def test_accounting_suffices_without_records() -> None:
    class Absent:
        def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
            raise UnavailableError("senergyctld", "does not answer")

    absent = cast("ControllerClient", Absent())
    data = read_site(absent, BEGIN, BEGIN + 2 * HOUR, sacct(ROW))
    assert data.jobs.jobs.count == 1
    assert data.energy is None
    assert data.jobs.notes == ["no measured energy: senergyctld: does not answer"]
    with pytest.raises(EnergyError, match="senergyctld: does not answer"):
        read_site(absent, BEGIN, BEGIN + 2 * HOUR, without_accounting)
