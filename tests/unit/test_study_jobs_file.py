"""Tests of reading and writing the jobs and the energy of studies in files.

The tests cover CSV files, output of sacct, and malformed lines.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from study_examples import node_energy, week_jobs

from slurm_energy.cli import study_sources
from slurm_energy.errors import UsageError
from slurm_energy.study.data.energy_file import energy_csv, read_energy
from slurm_energy.study.data.jobs_file import job_row, read_jobs
from slurm_energy.study.data.jobs_table import COLUMNS, MAX_NAME, TEXTS, bounded_name, csv_text, jobs_table

SACCT = "\n".join(
    "|".join(line)
    for line in (
        *zip(
            ("JobIDRaw", "7", "7.batch", "8"),
            ("JobName", 'a "b', "batch", "c"),
            ("User", "alice", "", "bob"),
            ("Account", "physics", "physics", "biology"),
            ("Partition", "gpu", "", "cpu"),
            ("State", "COMPLETED", "COMPLETED", "CANCELLED by 1000"),
            ("NNodes", "2", "1", "1"),
            ("AllocCPUS", "8", "4", "0"),
            ("AllocTRES", "cpu=8,gres/gpu=4,node=2", "cpu=4", ""),
            ("Submit", *["2026-03-02T10:00:00"] * 3),
            ("Start", "2026-03-02T10:05:00", "2026-03-02T10:05:00", "Unknown"),
            ("End", "2026-03-02T11:05:00", "2026-03-02T11:05:00", "2026-03-02T10:30:00"),
            ("TimelimitRaw", "120", "", "UNLIMITED"),
            ("ConsumedEnergyRaw", "7200000", "3600000", "0"),
            strict=True,
        ),
    )
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return path


def test_a_table_survives_a_file(tmp_path: Path) -> None:
    jobs = week_jobs(2).with_columns(arm=["control"] * week_jobs(2).count)
    again = read_jobs(written(tmp_path, csv_text(jobs)))
    assert again.notes == []
    for name in COLUMNS:
        before, after = getattr(jobs, name), getattr(again.jobs, name)
        assert np.array_equal(before, after, equal_nan=name not in TEXTS), name


def test_names_of_jobs_are_no_formulas_in_a_spreadsheet_and_survive_the_file(tmp_path: Path) -> None:
    names = ['=HYPERLINK("http://x";"y")', "+1", "-a" * 32, "@x", "'plain'", "'=x", "''+y'", "resnet"]
    jobs = week_jobs(2).where(np.arange(week_jobs(2).count) < len(names)).with_columns(name=names)
    text = csv_text(jobs)
    assert {line["name"][0] for line in csv.DictReader(text.splitlines())} == {"'", "r"}
    assert read_jobs(written(tmp_path, text)).jobs.name.tolist() == names
    sacct = read_jobs(written(tmp_path, SACCT.replace("|c|", "|'=c|"))).jobs
    assert sacct.name.tolist()[1] == "'=c"


def test_long_names_of_jobs_stay_distinct_in_a_narrow_column() -> None:
    names = ["a" * 250 + end for end in "bc"] + ["b" * MAX_NAME, "short"]
    jobs = jobs_table(name=names)
    assert len(set(jobs.name.tolist())) == 4
    assert jobs.name.dtype.itemsize == 4 * MAX_NAME
    assert jobs.name.tolist()[2:] == names[2:]
    assert [bounded_name(name) for name in jobs.name.tolist()] == jobs.name.tolist()


def test_output_of_sacct(tmp_path: Path) -> None:
    jobs = read_jobs(written(tmp_path, SACCT), timezone="Europe/Paris").jobs
    assert jobs.job_id.tolist() == ["7", "8"]
    assert jobs.name[0] == 'a "b'
    assert (jobs.nodes[0], jobs.cpus[0], jobs.gpus[0]) == (2, 8, 4)
    assert jobs.submit_s[0] == 1772442000.0  # 09:00 UTC
    assert jobs.run_s[0] == 3600
    assert jobs.time_limit_s.tolist() == pytest.approx([7200, math.nan], nan_ok=True)
    assert jobs.energy_joules.tolist() == pytest.approx([7.2e6, math.nan], nan_ok=True)
    assert jobs.state.tolist() == ["COMPLETED", "CANCELLED"]
    assert math.isnan(jobs.start_s[1])


def test_columns_with_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, "arrived,began,length,cores\n0,60,1:00:00,4\n")
    names = {"submit_s": "arrived", "start_s": "began", "run_s": "length", "cpus": "cores"}
    jobs = read_jobs(path, names).jobs
    assert (jobs.submit_s[0], jobs.start_s[0], jobs.end_s[0], jobs.cpus[0]) == (0, 60, 3660, 4)


@pytest.mark.parametrize(
    ("text", "renamed", "fault"),
    [
        ("", {}, "is empty"),
        ("a,b\n1,2\n", {}, "no column for submit_s: it has a, b; name the column: --column submit_s=NAME"),
        ("submit_s,start_s\n1,2\n", {}, "no column for end_s or run_s"),
        ("submit_s,start_s,end_s\n", {}, "has no job"),
        ("submit_s,start_s,end_s\n1,2,3\n", {"submt_s": "x"}, "did you mean 'submit_s'"),
        ("submit_s,start_s,end_s\n1,2,3\n", {"nodes": "x"}, "there is no column 'x'"),
        ("submit_s,start_s,end_s\n1,5,3\n", {}, "jobs.csv:2: the job ends before it starts"),
    ],
)
def test_files_without_jobs_are_errors(
    tmp_path: Path, text: str, renamed: dict[str, str], fault: str
) -> None:
    with pytest.raises(UsageError, match=fault):
        read_jobs(written(tmp_path, text), renamed)


def test_malformed_lines_are_skipped_and_reported(tmp_path: Path) -> None:
    text = "submit_s,start_s,end_s,nodes\n1,2,3,1\nx,2,3,1\n1,2,3,-1\n1,2\n,2,3,1\n1,2,inf,1\n"
    loaded = read_jobs(written(tmp_path, text))
    assert loaded.jobs.count == 1
    assert [note.partition("jobs.csv:")[2] for note in loaded.notes] == [
        "3: submit_s: 'x' is not a time",
        "4: a value is negative",
        "5: the line has too few columns",
        "6: the time of submission is missing",
        "7: end_s: 'inf' is not a time in Unix seconds",
    ]


def test_runs_in_overlapping_files_count_once(tmp_path: Path) -> None:
    head = "job_id,submit_s,start_s,end_s,nodes,energy_joules"
    march = ["1,0,5,50,1,", "2,10,20,,2,", "3,30,,,1,", "4,40,,45,1,", ",0,5,9,1,", "6,60,70,80,1,600"]
    april = ["1,0,5,50,1,900", "2,10,20,99,2,", "3,30,90,120,1,", "4,40,,45,1,", ",0,5,9,1,"]
    april += ["6,60,70,80,1,", "6,60,85,95,1,"]  # started again after a requeue
    options = []
    for name, rows in (("march", march), ("april", april)):
        (tmp_path / name).write_text("\n".join([head, *rows]))
        options += ["--jobs", str(tmp_path / name)]
    parser = argparse.ArgumentParser()
    study_sources.add_options(parser)
    loaded, _ = study_sources.sources(parser.parse_args(options), "").read()
    jobs = loaded.jobs
    ends = dict(zip(zip(jobs.job_id.tolist(), jobs.start_s.tolist(), strict=True), jobs.end_s, strict=True))
    assert jobs.count == 8 and loaded.notes[0].startswith("5 rows left out: the files overlap")
    assert (ends["2", 20.0], ends["3", 90.0], ends["6", 70.0], ends["6", 85.0]) == (99, 120, 80, 95)
    assert jobs.job_id.tolist().count("") == 2 and np.nansum(jobs.energy_joules) == 1500


@examples(40)
@given(
    st.dictionaries(st.sampled_from([*COLUMNS, "run_s", "tres"]), st.text("0123456789-:.,T+ e∞", max_size=8))
)
def test_no_text_breaks_the_parser(texts: dict[str, str]) -> None:
    try:
        row = job_row({name: text.strip() for name, text in texts.items()})
    except ValueError:
        return
    assert row["submit_s"] is not None


def test_energy_survives_a_file(tmp_path: Path) -> None:
    energy = node_energy(week_jobs(2), 2)
    energy.joules[5] = math.nan
    path = tmp_path / "energy.csv"
    path.write_text(energy_csv(energy))
    again = read_energy(path)
    assert np.array_equal(energy.joules, again.joules, equal_nan=True)
    assert np.array_equal(energy.start_s, again.start_s)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("start_s,joules\n", ":1: there is no column end_s"),
        ("start_s,end_s,joules\n", "has no intervals"),
        ("start_s,end_s,joules\n0,1,x\n", ":2: joules: 'x' is not a number"),
        ("start_s,end_s,joules\n0,1,-1\n", ":2: joules: '-1' is not possible"),
        ("start_s,end_s,joules\n0,5,3600,5,100\n", ":2: has more fields than the header"),
        ("start_s,end_s,joules\n1,1,1\n", ":2: the interval ends before it begins"),
        ("start_s,end_s,joules\n0,2,1\n1,3,1\n", "intervals overlap at 1 s"),
    ],
)
def test_malformed_energy_is_an_error(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "energy.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=fault):
        read_energy(path)


def test_the_name_of_a_job_cannot_set_its_other_columns(tmp_path: Path) -> None:
    header = SACCT.splitlines()[0]
    values = dict(zip(header.split("|"), SACCT.splitlines()[1].split("|"), strict=True))
    forged = [*(values | {"JobIDRaw": "9", "JobName": "a", "User": "root"}).values()][:-1]
    line = "|".join([*forged, "1e12", *list(values.values())[2:]])
    path = tmp_path / "sacct.txt"
    path.write_text(f"{SACCT}\n{line}\n")
    loaded = read_jobs(path)
    assert loaded.jobs.job_id.tolist() == ["7", "8"]
    assert any("a text contains |" in note for note in loaded.notes)
    path.write_text("\n".join(f"{line}|" for line in SACCT.splitlines()))  # sacct -p
    assert read_jobs(path).jobs.job_id.tolist() == ["7", "8"]
