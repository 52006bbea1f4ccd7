"""Tests of fitting the predictor (oracle) again to runs at several power limits.

The tests check which runs are used, for which kinds of GPU a new fit is made, and the fit itself.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest

from slurm_energy import config as configuration
from slurm_energy.accounting import engine
from slurm_energy.accounting.history.tuning_runs import StoredRun
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning import oracle_calibrations, oracle_refit
from slurm_energy.controller.tuning.advisor import curve_oracle
from slurm_energy.controller.tuning.oracle_refit import OracleRefit, refittable_kind, relative_rows
from slurm_energy.errors import UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.oracle.calibration import refit
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.learned_run import LearnedRun

pytestmark = pytest.mark.slow
A100 = "NVIDIA A100-SXM4-40GB"
KIND = "a100-sxm4-40gb"


def run(limit, seconds, watts, **more):
    point = UNTUNED if limit is None else OperatingPoint(gpu_limit_watts=limit)
    values = {"hardware": A100, "shape": "1 nodes, 1 GPUs, 8 CPUs", "end_unix_s": 1.0, "job": "1"}
    measured = {"point": point, "seconds": seconds, "watts": watts + 100.0, "gpu_watts": watts}
    return LearnedRun(**{**values, "model": "resnet50", **measured, **more})


RUNS = (run(None, 1000.0, 330.0), run(300.0, 1030.0, 290.0), run(200.0, 2000.0, 198.0))


def test_rows_are_relative_to_untuned_runs_of_the_same_shape():
    rows = relative_rows(RUNS)
    assert [row["time_ratio"] for row in rows] == pytest.approx([1.0, 1.03, 2.0])
    assert [row["cap_watts"] for row in rows] == [None, 300.0, 200.0]
    assert relative_rows(RUNS[1:]) == []
    assert relative_rows([*RUNS[:2], run(200.0, 2000.0, 198.0, shape="2 nodes")]) == []
    assert relative_rows([run(limit, 1.0, 0.0) for limit in (None, 200.0, 300.0)]) == []


def test_kinds_that_are_refitted(tmp_path):
    config = configuration.parse("")
    assert refittable_kind(A100, config) == KIND
    for name in ("NVIDIA A40", "AMD EPYC 7513", "no such GPU", "../x"):
        assert refittable_kind(name, config) is None


@pytest.fixture
def site(tmp_path):
    """Yield the task that refits the predictor (oracle) from runs in a test database.

    The database contains runs of an operator and runs of other users.
    """
    store = Store(tmp_path / "senergy.db")
    config = configuration.parse(f'[controller]\ndatabase = "{tmp_path}/senergy.db"\n')
    with engine.connect(store.path) as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        for number, (owner, made) in enumerate(
            [("olga", one) for one in RUNS] + [("mallory", run(150.0, 9999.0, 20.0)), ("", RUNS[0])]
        ):
            stored = StoredRun(owner, A100, "resnet50", None, "resnet50", 1.0, made.to_json())
            connection.exec_driver_sql(
                'INSERT INTO tuning_runs (job, owner, hardware, workload, fingerprint, model, "end", body)'
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (number, *stored),
            )
    changes = []
    failures = RepeatedFailureLog(logging.getLogger("test"))
    made = OracleRefit(
        lambda: config, store, failures, lambda name: name == "olga", lambda: changes.append(1)
    )
    made.changes, made.config = changes, config
    yield made
    store.close()


def test_runs_of_operators_change_the_curve_once(site):
    before = curve_oracle(site.config)("resnet50", A100)
    assert asyncio.run(site.refit()) == [KIND] and site.changes == [1]
    assert asyncio.run(site.refit()) == [] and site.changes == [1]
    after = curve_oracle(site.config)("resnet50", A100)
    at_200 = [
        next(point.time_ratio for point in curve.points if point.point.gpu_limit_watts == 200.0)
        for curve in (before, after)
    ]
    assert at_200[0] < 1.6 < at_200[1] < 2.4  # mallory's run at 150 W has no effect
    oracle_calibrations.refit_file(site.config, KIND).write_text("no calibration")
    assert curve_oracle(site.config)("resnet50", A100) == before


def test_a_fit_that_takes_too_long_is_ended(site, monkeypatch):
    monkeypatch.setattr(oracle_refit, "TIMEOUT_S", 0.0)
    with pytest.raises(UnavailableError, match="not fitted within"):
        asyncio.run(site.refit())
    monkeypatch.setattr(oracle_refit, "_MODULE", "slurm_energy.no_such_module")
    monkeypatch.setattr(oracle_refit, "TIMEOUT_S", 60.0)
    with pytest.raises(UnavailableError, match="no_such_module"):
        asyncio.run(site.refit())


def test_a_fit_that_fails_is_repeated_and_delays_no_other_fit(site, monkeypatch):
    fitted, broken = [], {"a"}

    async def fit(kind, _):
        fitted.append(kind)
        if kind in broken:
            raise UnavailableError(f"calibration of {kind}", "no space")

    monkeypatch.setattr(site, "_requests", lambda _: {"a": [{}], "b": [{}]})
    monkeypatch.setattr(site, "_fit", fit)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="calibration of a"):
            asyncio.run(site.refit())
    assert fitted == ["a", "b", "a"] and site.changes == [1]
    broken.clear()
    assert asyncio.run(site.refit()) == ["a"] and site.changes == [1, 1]
    assert asyncio.run(site.refit()) == []


def test_a_refit_works_where_the_unit_forbids_priorities_and_limits(tmp_path, monkeypatch):
    def forbidden(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(refit.os, "nice", forbidden)
    monkeypatch.setattr(refit.resource, "setrlimit", forbidden)
    request = {"hardware": KIND, "files": [], "runs": relative_rows(RUNS)}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    monkeypatch.setattr("sys.argv", ["refit", str(tmp_path / "out.toml")])
    assert refit.main() == 0
    assert "refitted to 3 runs" in (tmp_path / "out.toml").read_text()
