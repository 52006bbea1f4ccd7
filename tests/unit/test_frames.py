"""Tests of the functions that return data frames.

The data frames contain jobs, steps, traces and the queue, results of simulations, and sweeps.
"""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import usage_examples
from report_examples import START, answer, component, job_info, record, wave

from slurm_energy import frames
from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.frames import controller_frames
from slurm_energy.frames.controller_frames import JOB_COLUMNS, QUEUE_COLUMNS, STEP_COLUMNS
from slurm_energy.reports.trace import encode_trace

pd = pytest.importorskip("pandas")
ROOT = Path(__file__).resolve().parents[2]


class Controller:
    """A fake controller that returns a fixed response to each request, and stores the requests."""

    def __init__(self, response):
        self.response, self.requests = response, []

    def get(self, path, query=None):
        self.requests.append((path, query))
        return self.response


@pytest.fixture
def controller():
    trace = encode_trace(START, 1.0, {"cpu": wave(40, 100, 400)})
    return Controller(
        {
            "records": [
                answer(record(12), job_info(12, nodes=2), trace),
                answer(record(12, "n2"), job_info(12, nodes=2), trace),
                answer(record(12, step="0"), job_info(12, nodes=2)),
                answer(record(13, components=(component("cpu", None),), mean_watts=None), job_info(13)),
            ]
        }
    )


def test_jobs_have_typed_columns_with_units_and_unknown_is_not_zero(controller):
    frame = frames.jobs(controller=controller)
    assert list(frame.columns) == [column.name for column in JOB_COLUMNS]
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        column.name: column.type.value for column in JOB_COLUMNS
    }
    assert frame.attrs["units"]["energy_joules"] == "J" and "name" not in frame.attrs["units"]
    two, unknown = frame.itertuples()
    assert (two.job_id, two.nodes, two.energy_joules) == (12, 2, 35200.0)
    assert two.start == datetime.fromtimestamp(START, UTC) and two.elapsed_s == 40.0
    assert pd.isna(unknown.energy_joules) and pd.isna(unknown.mean_watts)


def test_a_selection_without_jobs_has_the_same_columns():
    frame = frames.jobs(controller=Controller({"records": []}))
    assert len(frame) == 0
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        column.name: column.type.value for column in JOB_COLUMNS
    }


def test_selections_become_parameters_of_the_request(controller):
    frames.jobs(
        ["12", "13_1"], users="ada", accounts=("a", "b"), start=datetime(2026, 1, 1, tzinfo=UTC), end=2e9,
        duplicates=True, controller=controller,
    )  # fmt: skip
    ((path, query),) = controller.requests
    assert path == "/v1/records" and float(query.pop("start")) == 1767225600.0
    assert query == {
        "job": "12,13_1", "user": "ada", "account": "a,b", "end": "2000000000.0", "duplicates": "1",
    }  # fmt: skip
    with pytest.raises(UsageError, match="users: the list is empty"):
        frames.jobs(users=[], controller=controller)
    with pytest.raises(UsageError, match="later"):
        frames.jobs(start="later", controller=controller)


def test_steps_are_rows(controller):
    frame = frames.steps(12, controller=controller)
    assert controller.requests == [("/v1/records", {"job": "12", "steps": "1"})]
    assert list(frame.columns) == [column.name for column in STEP_COLUMNS]
    assert frame.step.tolist() == ["0"] and frame.energy_joules.tolist() == [17600.0]


def test_a_trace_is_the_sum_of_the_nodes_over_time(controller):
    controller.response = {"records": controller.response["records"][:3]}
    frame = frames.trace("12", controller=controller)
    assert controller.requests[0][0] == "/v1/jobs/12"
    assert str(frame.index.dtype).startswith("datetime64[") and frame.index.name == "time"
    assert frame.index[0] == datetime.fromtimestamp(START, UTC) and len(frame) == 40
    assert frame.total.max() == pytest.approx(800.0) and frame.attrs["interval_s"] == 1.0
    controller.response = {"records": [answer(record(12), job_info(12))]}
    with pytest.raises(NotFoundError, match="no power trace"):
        frames.trace(12, controller=controller)


def test_a_trace_of_an_id_with_several_jobs_is_refused(controller):
    def job(number, cluster, **facts):
        trace = encode_trace(START, 1.0, {"cpu": [number * 1.0] * 40})
        return answer(record(number, cluster=cluster), job_info(number, **facts), trace)

    tasks = [job(12 + task, "lab", display_id=f"12_{task}", array_job_id=12) for task in (0, 1)]
    controller.response = {"records": tasks}
    with pytest.raises(UsageError, match=r"12: it has several tasks .*'12_0'"):
        frames.trace(12, controller=controller)
    controller.response = {"records": [job(12, "lab"), job(12, "other")]}
    with pytest.raises(UsageError, match="12: the clusters lab and other"):
        frames.trace(12, controller=controller)
    assert len(frames.trace(12, cluster="lab", controller=controller)) == 40
    with pytest.raises(NotFoundError, match="12: it has no energy record"):
        frames.trace(12, cluster="third", controller=controller)


def test_the_queue_has_a_column_per_term():
    job = {
        "place": 1, "job_id": 5, "display_id": "5", "name": "x", "user": "ada", "account": "a",
        "partition": "p", "score": 1.5, "terms": [{"name": "edp", "value": 0.25, "weight": 1.0}],
        "predicted": {"time_s": 60.0, "power_watts": 100.0, "energy_joules": 6000.0},
    }  # fmt: skip
    waiting = {"place": None, "job_id": 6, "display_id": "6", "terms": [], "predicted": None}
    frame = frames.queue(controller=Controller({"jobs": [job, waiting]}))
    assert list(frame.columns) == [*(column.name for column in QUEUE_COLUMNS), "term_edp"]
    assert frame.predicted_joules[0] == 6000.0 and frame.term_edp[0] == 0.25
    assert pd.isna(frame.place[1]) and pd.isna(frame.term_edp[1])


def test_tables_of_simulations_are_joined_by_policy(tmp_path):
    for policy, joules in (("fcfs", 5.0), ("edp", 4.0)):
        with (tmp_path / f"jobs-{policy}.csv").open("w") as file:
            csv.writer(file).writerows([["job_id", "energy_joules"], [1, joules]])
    (tmp_path / "summary.json").write_text(json.dumps({"policy": ["fcfs"], "seed": [0], "time_s": [9.0]}))
    assert frames.simulation(tmp_path, "jobs").set_index("policy").energy_joules.to_dict() == {
        "fcfs": 5.0,
        "edp": 4.0,
    }
    assert frames.simulation(tmp_path).time_s.tolist() == [9.0]
    with pytest.raises(NotFoundError, match="power"):
        frames.simulation(tmp_path, "power")
    with pytest.raises(UsageError, match="one of jobs, power, summary"):
        frames.simulation(tmp_path, "nodes")
    (tmp_path / "summary.json").write_text("[")
    with pytest.raises(UsageError, match="cannot be read"):
        frames.simulation(tmp_path)


def test_a_directory_stands_for_its_only_sweep(tmp_path):
    with pytest.raises(NotFoundError, match="no senergy-sweep"):
        frames.sweep(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"senergy-sweep-{name}.json").write_text("{}")
    with pytest.raises(UsageError, match="2 sweeps"):
        frames.sweep(tmp_path)


@pytest.mark.slow
def test_the_notebook_runs_on_a_cluster(controller, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    records = controller.response["records"]
    controller.response = {"records": records[:2]}
    monkeypatch.setattr(controller_frames, "client", lambda config=None: controller)
    notebook = json.loads((ROOT / "docs/notebooks/energy-of-a-project.ipynb").read_text())
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["table"].kwh.tolist() == [pytest.approx(35200.0 / 3.6e6)]
    assert names["axes"].get_ylabel() == "W"


class UsageController(Controller):
    def get(self, path, query=None):
        super().get(path, query)
        return usage_examples.response(query or {})


def test_a_report_adds_up_to_the_meter_and_has_one_row_per_group_and_interval():
    controller = UsageController(None)
    start = usage_examples.START
    frame = frames.report(["account", "user"], start=start, end=start + 86400, controller=controller)
    joules = sum(job[1] for job in usage_examples.JOBS) + sum(value for _, value in usage_examples.METER)
    assert frame.energy_joules.sum() == pytest.approx(joules)
    assert set(frame.kind) == {"job", "idle", "unattributed"}
    assert frame[frame.user == "carol"].account.tolist() == ["theory"]
    assert frame.attrs["units"]["co2e_grams"] == "g" and pd.isna(frame.dram_joules).all()
    daily = frames.report(
        "account", start=start, end=start + 3 * 86400, interval="day", controller=controller
    )
    assert daily.start.nunique() == 3 and "user" not in daily
    with pytest.raises(UsageError, match="one of account, user"):
        frames.report("group", controller=controller)
    with pytest.raises(UsageError, match="one of all, hour"):
        frames.report(interval="year", controller=controller)


@pytest.mark.parametrize(
    "window", [{"start": "now", "end": "now-7days"}, {"start": 5.0, "end": 5.0}, {"start": "now+1day"}]
)
def test_a_report_must_end_after_its_start(window):
    controller = UsageController(None)
    with pytest.raises(UsageError, match="start: the time range does not end after its start"):
        frames.report(**window, controller=controller)
    assert not controller.requests
