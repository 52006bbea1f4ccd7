"""Tests of the digital twin, the simulator that is calibrated for a site.

They check the times and energies of replayed jobs, and the effect of each means to save energy (lever).
"""

from __future__ import annotations

import numpy as np
import pytest

from slurm_energy.errors import UsageError
from slurm_energy.study.data.jobs_table import JobsTable, jobs_table
from slurm_energy.study.modelling.twin import TwinChange, TwinKind, TwinSettings, simulate, twin_settings_of

DAY_S = 86_400.0
BEGIN_S = 20_000 * DAY_S
TWIN = TwinSettings({"gpu": TwinKind(2, 100.0), "cpu": TwinKind(1, 50.0)})


def jobs_of(*rows: tuple[str, float, float, float, float]) -> JobsTable:
    """Return a table of example jobs, which start at their submission.

    Args:
        *rows: one tuple per job: partition, nodes, submission in hours, run time in hours, and
            watts of a node.
    """
    submit = [BEGIN_S + row[2] * 3600 for row in rows]
    return jobs_table(
        job_id=list(map(str, range(len(rows)))),
        user=["ann"] * len(rows),
        partition=[row[0] for row in rows],
        nodes=[row[1] for row in rows],
        submit_s=submit,
        start_s=submit,
        end_s=[time_s + row[3] * 3600 for time_s, row in zip(submit, rows, strict=True)],
        energy_joules=[row[1] * row[3] * 3600 * row[4] for row in rows],
    )


def test_jobs_wait_for_the_nodes_of_their_partition_and_energy_includes_idle_nodes() -> None:
    jobs = jobs_of(("gpu", 1, 1, 1, 400), ("gpu", 2, 0, 2, 300), ("cpu", 1, 0, 1, 200))
    run = simulate(jobs, TWIN)
    assert ((run.jobs.start_s - BEGIN_S) / 3600).tolist() == [2.0, 0.0, 0.0]
    assert run.jobs.energy_joules.tolist() == pytest.approx(jobs.energy_joules.tolist())
    hours = run.energy.joules / 3600
    assert hours.tolist() == pytest.approx([600 + 200, 600 + 50, 400 + 100 + 50])
    assert run.energy.start_s[0] == BEGIN_S
    assert run.jobs.speed.tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_tuned_jobs_run_longer_with_less_power_and_keep_their_work() -> None:
    jobs = jobs_of(("gpu", 1, 0, 1, 400), ("gpu", 1, 0, 1, 400))
    change = TwinChange(time_ratio=np.array([1.25, 1.0]), power_ratio=np.array([0.5, 1.0]))
    run = simulate(jobs, TWIN, change)
    assert (run.jobs.run_s / 3600).tolist() == pytest.approx([1.25, 1.0])
    assert (run.jobs.energy_joules / 3600).tolist() == pytest.approx([250.0, 400.0])
    assert run.jobs.work_node_hours.tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.slow
def test_levers_of_the_site_change_order_power_and_idle_energy() -> None:
    jobs = jobs_of(
        ("cpu", 1, 0, 5, 200), ("cpu", 1, 1, 3, 200), ("cpu", 1, 2, 1, 200), ("cpu", 1, 24, 1, 200)
    )
    today = simulate(jobs, TWIN)
    shortest = simulate(jobs, TWIN, TwinChange(ranking="sjf"))
    assert np.nanmean(shortest.jobs.completion_s) < np.nanmean(today.jobs.completion_s)
    saving = simulate(jobs, TWIN, TwinChange(powers_down=True))
    assert saving.energy.joules.sum() < 0.8 * today.energy.joules.sum()
    both = jobs_of(("gpu", 1, 0, 1, 400), ("gpu", 1, 0, 1, 400))
    limited = simulate(both, TWIN, TwinChange(budget_watts=600.0))
    assert ((limited.jobs.start_s - BEGIN_S) / 3600).tolist() == [0.0, 1.0]


def test_a_budget_limits_running_jobs_where_their_response_is_known() -> None:
    both = jobs_of(("gpu", 1, 0, 1, 400), ("gpu", 1, 0, 1, 400)).with_columns(
        job_class=np.array(["known", "known"])
    )
    caps = {"known": [(1.25, 0.75), (2.0, 0.5)], "other": [(1.0, 0.1)]}
    run = simulate(both, TWIN, TwinChange(budget_watts=700.0, caps=caps))
    assert ((run.jobs.start_s - BEGIN_S) / 3600).tolist() == [0.0, 0.0]
    assert run.energy.joules.max() <= 700.0 * 3600 * (1 + 1e-9)
    assert np.all(run.jobs.run_s > 3600) and np.all(run.jobs.run_s < 2 * 3600)
    assert run.jobs.work_node_hours.tolist() == pytest.approx([1.0, 1.0])
    assert np.all(run.jobs.energy_joules < both.energy_joules)
    unlimited = simulate(both, TWIN, TwinChange(budget_watts=5000.0, caps=caps))
    assert (unlimited.jobs.run_s / 3600).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("ranking", ["fcfs", "sjf", "zeus", "hades"])
def test_a_ranking_starts_jobs_at_full_power_where_the_budget_has_room(ranking: str) -> None:
    jobs = jobs_of(("gpu", 1, 0, 1, 400), ("gpu", 1, 0, 2, 300)).with_columns(job_class=np.array(["a", "b"]))
    caps = {"a": [(1.25, 0.5)], "b": [(1.1, 0.6)]}
    run = simulate(jobs, TWIN, TwinChange(ranking=ranking, budget_watts=5000.0, caps=caps))
    assert (run.jobs.run_s / 3600).tolist() == pytest.approx([1.0, 2.0])


def test_settings_survive_json_and_damage_is_one_line() -> None:
    assert twin_settings_of(TWIN.document()) == TWIN
    with pytest.raises(UsageError, match="the twin: is damaged"):
        twin_settings_of({"kinds": {"gpu": {"nodes": 1, "wheels": 4}}})
    with pytest.raises(UsageError, match="no finished job"):
        simulate(jobs_table(), TWIN)
