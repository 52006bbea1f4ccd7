"""Tests of the synthetic weeks of jobs and energy that the lab generates for studies.

The energy is conserved, and the true effect of tuning is known. If a fault is planted on purpose, the jobs
of one account starve.
"""

import pytest

from slurm_energy.cli.main import main
from slurm_energy.config import Config
from slurm_energy.config.loader import parse_source
from slurm_energy_lab.study_weeks.arrivals import DAY_S, draw_week_jobs, thesis_mix, trace_mix
from slurm_energy_lab.study_weeks.program_truth import program_truth
from slurm_energy_lab.study_weeks.study_site import SiteMode, StudySite, site_mode, true_saving, tuned_mode

TUNED = tuned_mode()


def site(days, mode=TUNED, seed=3):
    made = StudySite(seed, draw_week_jobs(seed, thesis_mix(), days), 0.0)
    made.run_until(days * DAY_S, mode)
    return made


def test_measured_hours_add_up_to_the_true_energy():
    made = site(7)
    measured = sum(joules for _, _, joules in made.energy_rows())
    assert measured == pytest.approx(made.totals(0.0, 7 * DAY_S).joules, rel=2e-3)


def test_energy_of_jobs_is_part_of_that_of_the_nodes():
    made = site(7)
    jobs = sum(row.get("energy_joules", 0.0) for row in made.job_rows())
    assert 0.3 * made.totals(0.0, 7 * DAY_S).joules < jobs < made.totals(0.0, 7 * DAY_S).joules


def test_no_node_runs_two_jobs_at_once():
    rows = [row for row in site(7).job_rows() if "start_s" in row]
    for partition in ("ampere", "hopper"):
        events = []
        for row in rows:
            if row["partition"] == partition:
                events += [(row["start_s"], row["nodes"]), (row.get("end_s", 1e12), -row["nodes"])]
        used = 0
        for _, change in sorted(events):
            used += change
            assert 0 <= used <= 2


def test_tuning_slows_a_program_down_by_at_most_its_limit():
    truth = program_truth("hopper", "train", "energy", 0.05)
    assert 1.0 < truth.time_ratio <= 1.05
    assert truth.watts < program_truth("hopper", "train").watts
    assert all("speed" in row for row in site(2).job_rows() if "start_s" in row)
    assert not any("speed" in row for row in site(2, SiteMode()).job_rows())


def test_the_true_saving_of_tuning_is_known_and_that_of_no_change_is_zero():
    jobs = draw_week_jobs(3, thesis_mix(), 14)
    assert -0.2 < true_saving(3, jobs, TUNED, 7, 7) < -0.03
    assert true_saving(3, jobs, SiteMode(), 7, 7) == 0.0


def test_a_planted_fault_starves_one_account():
    rows = site(7, SiteMode(starved_account="physics")).job_rows()
    assert {row["state"] for row in rows if row["account"] == "physics"} == {"PENDING"}
    assert any(row["state"] == "COMPLETED" for row in rows)


def test_a_trace_gives_lengths_and_sizes(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time,length,cpus\n0.0,25.4,1\n0.5,2.0,16\n")
    jobs = draw_week_jobs(1, trace_mix(trace), 7)
    assert {job.nodes for job in jobs} == {1, 2}
    assert max(job.seconds for job in jobs if job.nodes == 1) < 16 * 3600


def test_the_configuration_decides_what_is_tuned(tmp_path):
    text = '[tuning]\nmode = "on"\n[tuning.partition]\nampere = "off"\n[defaults.user]\nphysics0 = "energy"\n'
    mode = site_mode(parse_source(text, tmp_path / "energy.toml").config, fault="vision")
    jobs = draw_week_jobs(2, thesis_mix(), 14)
    tuned = {(job.user, job.partition) for job in jobs if mode.objective(job)}
    assert tuned == {("physics0", "hopper")}
    assert mode.starved_account == "vision"
    assert site_mode(Config(), fault="vision").starved_account is None


@pytest.mark.slow
def test_the_command_runs_a_site_on_and_refuses_what_has_no_effect(tmp_path, capsys):
    site = str(tmp_path / "site")
    assert main(["lab", "weeks", site, "--begin", "--days", "2", "--seed", "4"]) == 0
    assert main(["lab", "weeks", site, "--days", "1", "--starve", "vision"]) == 0
    assert (tmp_path / "site/jobs-3.csv").exists()
    assert len((tmp_path / "site/energy-3.csv").read_text().splitlines()) == 1 + 3 * 24
    capsys.readouterr()
    assert main(["lab", "weeks", site, "--seed", "4"]) == 2
    assert "--seed: belongs to --begin" in capsys.readouterr().err
    assert main(["lab", "weeks", site, "--begin", "--days", "2"]) == 2
    assert "contains a site already: leave out --begin" in capsys.readouterr().err
    assert main(["lab", "weeks", site, "--begin", "--first-day", "2026-09-08"]) == 2
    assert "is no Monday" in capsys.readouterr().err
    assert main(["lab", "weeks", str(tmp_path / "none")]) == 2
