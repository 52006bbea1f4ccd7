"""Tests of the command `senergy report`.

The tests check that the grammar and the layout match sreport. They also check the units, the sums over the
hierarchy of accounts, and names that contain hostile characters.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import pwd
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import property_examples
import pytest
import usage_examples as examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from slurm_energy.cli.main import main
from slurm_energy.reports.utilization.grammar import Interval, ReportKind, parse_report
from slurm_energy.reports.utilization.intervals import interval_edges
from slurm_energy.reports.utilization.lines import report_lines
from slurm_energy.reports.utilization.units import (
    EnergyUnit,
    PercentMode,
    ReportUnits,
    TimeUnit,
    exact_energy,
    scaled_text,
)
from slurm_energy.reports.utilization.usage import Amounts, UsageDocument, total

WINDOW = ("start=2025-11-30", "end=2025-12-01")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def real_name(user: str) -> pwd.struct_passwd:
        if user != "alice":
            raise KeyError(user)
        return pwd.struct_passwd((user, "x", 1, 1, "Alice Liddell,Room 1", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", real_name)
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    with fake_controller.timezone("UTC"):
        yield


class Controller(fake_controller.FakeController):
    """A controller that answers any query about usage."""

    def __init__(self, **more: Any) -> None:
        super().__init__({})
        self.more = more

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert path == "/v1/usage"
        self.asked.append((path, dict(params or {})))
        return examples.response(params or {}, **self.more)


def install(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Controller:
    from slurm_energy.cli import connection

    controller = Controller(**more)
    monkeypatch.setattr(connection, "connect", lambda args: controller)
    return controller


@pytest.mark.parametrize(
    ("golden", "words"),
    [
        ("report_accounts.txt", "cluster AccountUtilizationByUser"),
        ("report_tree.txt", "cluster acc tree jobsonly"),
        ("report_subaccounts.txt", "cluster acc accounts=physics format=acc%-12,login,used,energy,share"),
        ("report_users.txt", "cluster UserUtilizationByAccount"),
        ("report_users_parsable.txt", "-P cluster UA -t Seconds"),
        ("report_top.txt", "user TopUsage group topcount=2 -s energy -t MWh"),
        ("report_qos.txt", "cluster AQ"),
        ("report_utilization.txt", "cluster Utilization"),
        ("report_utilization_days.txt", "cluster Util interval=day start=2025-11-29T12:00 end=2025-12-01"),
        ("report_partitions.txt", "cluster UtilizationByPart"),
        ("report_policies.txt", "cluster UtilizationByPolicy -s name -t kJ"),
        ("report_tags.txt", "cluster UtilizationByTag"),
        ("report_gpus.txt", "cluster UtilizationByGpu -t Hours"),
        ("report_sizes.txt", "job SizesByAccount flatview"),
        ("report_sizes_cpu.txt", "job Sizes -T cpu grouping=64,256"),
        ("report_sizes_count.txt", "job Sizes acctasparent printjobcount grouping=individual"),
        ("report_tres.txt", "-T cpu,gpu,energy,energy/cpu,energy/dram,co2e,cost cluster a acc=theory"),
        ("report_tres_all.txt", "-T all cluster utilizationbypolicy -n -p"),
        ("report_percent.txt", "-t Percent cluster acc"),
        ("report_minper.txt", "-t MinPer,J cluster UA"),
        ("report.csv", "cluster UtilizationByTag --csv"),
        ("report.json", "cluster UtilizationByTag --json"),
    ],
)  # fmt: skip
def test_reports_match_golden_files(
    golden: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch)
    given_words = words.split()
    window = [] if any(word.startswith("start=") for word in given_words) else WINDOW
    assert main(["report", *given_words, *window]) == 0
    output = capsys.readouterr()
    golden_files.compare(golden, output.out)
    assert "Traceback" not in output.err


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, **more: Any) -> str:
    install(monkeypatch, **more)
    assert main(["report", *words.split(), *WINDOW]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("grouping", "titles"),
    [("1,2,50", "0-0 CPUs|1-1 CPUs|2-49 CPUs|>= 50 CPUs"), ("individual", "64 CPUs|128 CPUs")],
)
def test_size_classes_have_the_titles_of_sreport(
    grouping: str, titles: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = run(monkeypatch, capsys, f"-P job Sizes -T cpu grouping={grouping}").splitlines()[0]
    assert f"|{titles}|" in header


def test_a_window_with_cpu_time_and_without_energy_has_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A window with CPU time but without energy has a note.

    Without the note, energy that no node has delivered yet would look like a measured 0.
    """
    unmeasured = [examples.row("job", 0.0, account="physics", user="alice", cpu_seconds=60)]
    install(monkeypatch, rows=unmeasured)
    assert main(["report", "cluster", "acc", *WINDOW]) == 0
    assert "note: no energy was delivered in this window" in capsys.readouterr().err


def test_the_header_of_a_csv_file_has_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = run(monkeypatch, capsys, "cluster UtilizationByTag --csv", currency="E\x1b[2J").splitlines()[0]
    assert r"Cost(E\x1b[2J)" in header


def rows_of(output: str) -> list[list[str]]:
    return [line.split("|") for line in output.splitlines()]


UNMEASURED: dict[str, Any] = dict.fromkeys(
    f"{name}_microjoules" for name in ("energy", "cpu", "dram", "gpu", "other")
) | {"co2e_grams": None, "cost": None}
ENERGY_FIELDS = "format=login,energy,energycpu,co2e,cost,share"


def unmeasured_row(user: str, cpu_seconds: int = 60) -> dict[str, Any]:
    """Return the row of a job on nodes that measure nothing."""
    more = {"account": "physics", "user": user, "cpus": 4, "cpu_seconds": cpu_seconds}
    return examples.row("job", 0, **more) | UNMEASURED


def test_energy_that_was_not_measured_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [unmeasured_row("alice"), unmeasured_row("bob")]
    lines = run(monkeypatch, capsys, f"-n cluster ua {ENERGY_FIELDS}", rows=rows).splitlines()
    assert [line.split().count("unknown") for line in lines] == [5] * 5  # two users, three lines of the meter
    for option in ("-nP", "-n --csv", "-nP -t Percent"):
        output = run(monkeypatch, capsys, f"{option} cluster ua {ENERGY_FIELDS}", rows=rows)
        assert output.replace("|", ",").split() == ["alice,,,,,", "bob,,,,,", *[",,,,,"] * 3]
    document = json.loads(run(monkeypatch, capsys, "cluster ua --json", rows=rows))
    names = (*UNMEASURED, "energy_joules", "energy_kwh")
    assert [[line[name] for name in names] for line in document["rows"]] == [[None] * len(names)] * 5
    assert document["rows"][0]["cpu_seconds"] == 60
    assert set(run(monkeypatch, capsys, "-nP cluster util", rows=rows).strip().split("|")) == {"c1", ""}
    sizes = run(monkeypatch, capsys, "-n job sizes flatview grouping=individual", rows=rows)
    assert sizes.split() == ["c1", "physics", "unknown", "unknown"]


def test_a_sum_is_that_of_the_measured_energy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = examples.row("job", 3_600_000, account="physics", user="bob")
    rows = [unmeasured_row("alice", 900), known, unmeasured_row("carol")]
    lines = run(monkeypatch, capsys, f"-nP cluster a {ENERGY_FIELDS}", rows=rows).splitlines()
    whole, above, nothing = "|1|0.5|0.42|0.25|100.00", ["|1|0.5|0.42|0.25|100.00"] * 2, "|0||0|0|0.00"
    assert lines == [*above, "alice|||||", f"bob{whole}", "carol|||||", nothing, nothing, whole]
    by_energy = run(monkeypatch, capsys, "-nP -s energy cluster ua jobsonly format=login", rows=rows)
    assert by_energy.split() == ["bob", "alice", "carol"]


def test_a_measured_energy_of_zero_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [unmeasured_row("alice"), examples.row("job", 0, account="physics", user="bob")]
    output = run(monkeypatch, capsys, "-nP cluster ua -s energy jobsonly format=login,energy,co2e", rows=rows)
    assert output.split() == ["bob|0|0", "alice||"]


def test_hidden_energy_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, Any] = {"rows": [examples.row("job", 3_600_000)], "meter_visible": False, "scope": "own"}
    words = "cluster util format=all,idle,unat,rep"
    assert run(monkeypatch, capsys, f"-nP {words}", **more) == "1|||1\n"
    cells = run(monkeypatch, capsys, f"-n {words}", **more).split()
    assert cells == ["1.000000", "unknown", "unknown", "1.000000"]
    parts = json.loads(run(monkeypatch, capsys, "cluster util --json", **more))["rows"][0]["parts"]
    assert [part["energy_kwh"] for part in parts.values()] == [1.0, None, None]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("cluster util", ReportKind.UTILIZATION),
        ("cl Ut", ReportKind.UTILIZATION),
        ("CLUSTER A", ReportKind.ACCOUNT_BY_USER),
        ("cluster AccountUtilizationByQ", ReportKind.ACCOUNT_BY_QOS),
        ("cluster UA", ReportKind.USER_BY_ACCOUNT),
        ("cluster userutilizationbyaccount", ReportKind.USER_BY_ACCOUNT),
        ("cluster UtilizationByT", ReportKind.BY_TAG),
        ("j Sizes", ReportKind.SIZES_BY_ACCOUNT),
        ("user t", ReportKind.TOP_USAGE),
    ],
)
def test_reports_have_the_abbreviations_of_sreport(words: str, kind: ReportKind) -> None:
    assert parse_report(words.split()).kind is kind


def test_conditions_have_the_abbreviations_of_sreport() -> None:
    request = parse_report(
        [
            "cluster",
            "a",
            "s=0101",
            "e=0201",
            "f=login,used%20",
            "ac=a,b",
            'u="alice"',
            "c=c1",
            "tree",
            "acct=b",
        ]
    )
    assert (request.start, request.end, request.fields) == ("0101", "0201", ("login", "used%20"))
    assert (request.accounts, request.users, request.clusters) == (("a", "b", "b"), ("alice",), ("c1",))
    assert request.tree


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no report is named"),
        ("clusters util", "'clusters' is not a type of report: did you mean cluster?"),
        ("cluster utilizationby", "may be UtilizationByPartition, UtilizationByPolicy"),
        ("cluster WCKey", "the controller does not know wckeys: run sreport"),
        ("reservation util", "reservations have no energy of their own: run sreport"),
        ("cluster util tree", "Tree is not a condition of this report: only of AccountUtilizationByUser"),
        ("cluster a bob", "unknown condition 'bob': write users=bob for a user"),
        ("cluster a users=", "Users=: has no value"),
        ("cluster a tree=1", "Tree has no value: write tree"),
        ("cluster a start", "Start needs a value: write start=VALUE"),
        ("cluster a start=soon", "start=: 'soon' is not a time"),
        ("cluster a start=2031-01-01", "is not before the end of the window"),
        ("cluster a format=Foo", "format=: unknown field 'Foo'"),
        ("cluster util format=down", "the time for which nodes are down is known to sreport only"),
        ("cluster a format=login%0", "format=: bad width in 'login%0'"),
        ("cluster a interval=second", "interval=: 'second' is not an interval: write one of all, hour"),
        ("cluster a interval=hour start=2020-01-01", "interval=hour: more than 500 intervals"),
        ("user top topcount=-1", "topcount=: '-1' is not a number of users"),
        ("job sizes grouping=50,x", "grouping=: 'x' is not a number of CPUs"),
        ("job sizes grouping=50,20", "grouping=: the sizes do not ascend"),
        ("job sizes jobs=1", "Jobs is not a condition here: use senergy acct -j"),
        ("-T cpu,energy job sizes", "SizesByAccount shows one quantity"),
        ("-T cpu cluster util", "Utilization has no CPU or GPU time"),
        ("-T watts cluster a", "-T: 'watts' is not a quantity of these reports"),
        ("-t fortnights cluster a", "-t: 'fortnights' is not a unit: write one of SecPer"),
        ("-t J,kWh cluster a", "-t: 'J,kWh' names two units of energy"),
        ("-s up cluster a", "-s: 'up' is not an order: write one of Name, Time, Energy"),
        ("cluster a \x1b[2J", "unknown condition '\\x1b[2J'"),
    ],
)
def test_wrong_words_are_one_line_with_exit_code_2(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = install(monkeypatch)
    assert main(["report", *words.split(" ")] if words else ["report"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("senergy: error: ") and message in error and error.count("\n") == 1
    assert controller.asked == []


def test_options_may_stand_between_the_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(monkeypatch, capsys, "-n -P -t Hours cluster a")
    assert run(monkeypatch, capsys, "cluster -n a -P -t Hours") == first


def test_the_default_window_is_yesterday(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = install(monkeypatch)
    assert main(["report", "cluster", "util"]) == 0
    start, end = (int(text) for text in controller.asked[0][1]["edges"].split(","))
    assert end - start == 86400
    assert end % 86400 == 0


def test_lines_add_up_to_the_meter_in_every_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for report in ("UA", "AQ", "UtilizationByTag", "UtilizationByPolicy", "UtilizationByGpuKind"):
        rows = rows_of(run(monkeypatch, capsys, f"-nP -t J cluster {report} format=energy"))
        joules = [Fraction(row[0]) for row in rows]
        assert sum(joules[:-1]) == joules[-1] == Fraction("48724469.789012")
    utilization = rows_of(run(monkeypatch, capsys, "-nP -t J cluster Utilization format=all,idle,unat,rep"))
    *parts, reported = (Fraction(text) for text in utilization[0])
    assert sum(parts) == reported == Fraction("48724469.789012")


def test_accounts_are_the_sums_of_what_is_below_them() -> None:
    query = {"edges": f"{examples.START},{examples.START + 86400}", "by": "account,user"}
    document = UsageDocument.from_json(examples.response(query))
    lines = report_lines(parse_report(["cluster", "a"]), document)
    energy = {line.names["account"]: line.amounts.energy_uj for line in lines if line.names.get("user") == ""}
    users = [line for line in lines if line.names.get("user")]

    def below(account: str) -> int:
        own = sum(line.amounts.energy_uj for line in users if line.names["account"] == account)
        return own + sum(below(name) for name, above in examples.PARENTS.items() if above == account)

    assert {name: energy[name] for name in examples.PARENTS} == {
        name: below(name) for name in examples.PARENTS
    }


def test_without_slurmdbd_accounts_have_no_hierarchy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(run(monkeypatch, capsys, "-nP cluster a jobsonly format=acc,login", parents={}))
    assert [row[0] for row in rows if not row[1]] == ["biology", "physics", "theory", "(unknown)"]


def test_users_without_rights_do_not_see_the_meter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, meter_visible=False, scope="own")
    assert main(["report", "cluster", "UtilizationByTag", *WINDOW]) == 0
    output = capsys.readouterr()
    assert "(idle)" not in output.out and "(total)" not in output.out
    assert "hidden: only operators see them" in output.err
    assert "jobs of other users are not shown" in output.err


def test_energy_of_jobs_of_unknown_size_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch)
    assert main(["report", "job", "sizes", *WINDOW]) == 0
    assert "is in no class of sizes" in capsys.readouterr().err


def test_notes_are_printed_unless_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, shown in (("--config=x", True), ("-Q", False), ("-n", False)):
        install(monkeypatch, notes=["energy was divided"])
        assert main(["report", option, "cluster", "util", *WINDOW]) == 0
        assert ("note: energy was divided" in capsys.readouterr().err) is shown


@pytest.mark.parametrize(
    ("microjoules", "unit", "text"),
    [
        (3_600_000_000_000, EnergyUnit.KILOWATT_HOUR, "1"),  # 3.6 MJ
        (101_630_000_000, EnergyUnit.KILOJOULE, "101.63"),
        (101_630_000_000, EnergyUnit.WATT_HOUR, "28.230555556"),
        (7_200_000_000, EnergyUnit.WATT_HOUR, "2"),  # 120 W for a minute
        (1_000_000, EnergyUnit.JOULE, "1"),
        (1, EnergyUnit.JOULE, "0.000001"),
        (36 * 10**17, EnergyUnit.MEGAWATT_HOUR, "1000"),
        # 300 W for two hours are 0.6 kWh. EAR's manual divides joules by 10,000 and so gets 216.
        (300 * 7200 * 10**6, EnergyUnit.KILOWATT_HOUR, "0.6"),
        (300 * 7200 * 10**6, EnergyUnit.MEGAJOULE, "2.16"),
    ],
)
def test_units_of_energy_by_hand(microjoules: int, unit: EnergyUnit, text: str) -> None:
    assert exact_energy(microjoules, unit) == text


@given(st.integers(0, 2**70), st.sampled_from(EnergyUnit), st.integers(0, 9))
def test_energies_are_rounded_half_to_even(microjoules: int, unit: EnergyUnit, decimals: int) -> None:
    exact = Fraction(microjoules, unit.microjoules)
    assert Fraction(scaled_text(microjoules, unit.microjoules, decimals)) == round(exact, decimals)


@given(st.lists(st.integers(0, 2**62)), st.sampled_from([EnergyUnit.JOULE, EnergyUnit.KILOJOULE]))
def test_exact_energies_add_up(energies: list[int], unit: EnergyUnit) -> None:
    texts = [Fraction(exact_energy(energy, unit)) for energy in energies]
    assert sum(texts) == Fraction(exact_energy(sum(energies), unit))


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("s", ReportUnits(TimeUnit.SECONDS, EnergyUnit.JOULE)),
        ("Hours", ReportUnits(TimeUnit.HOURS, EnergyUnit.WATT_HOUR)),
        ("hours,kwh", ReportUnits(TimeUnit.HOURS, EnergyUnit.KILOWATT_HOUR)),
        ("MJ", ReportUnits(TimeUnit.MINUTES, EnergyUnit.MEGAJOULE)),
        ("m", ReportUnits()),
        ("per", ReportUnits(percent=PercentMode.ONLY)),
        ("SecPer", ReportUnits(TimeUnit.SECONDS, EnergyUnit.JOULE, PercentMode.BOTH)),
    ],
)
def test_units_are_abbreviated_as_in_sreport(text: str, units: ReportUnits) -> None:
    assert ReportUnits.parse(text) == units


def test_intervals_begin_at_local_midnight() -> None:
    with fake_controller.timezone("Europe/Berlin"):  # clocks change on 2025-10-26 and 2026-03-29
        start, end = 1761343200 - 7200, 1761343200 + 3 * 86400  # from 2025-10-24T22:00Z
        edges = interval_edges(start, end, Interval.DAY)
        lengths = [after - before for before, after in itertools.pairwise(edges)]
        assert 25 * 3600 in lengths and sum(lengths) == end - start
        months = interval_edges(start, start + 100 * 86400, Interval.MONTH)
    assert len(months) == 6  # the rest of October, three months, the first hours of February


NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(name=NAME)
@property_examples.examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_names_change_no_layout(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tag or user name with any characters stays in one cell of the report's table.

    This holds for tables on the terminal, for columns separated by a bar, for CSV and for JSON.
    """
    more = {"rows": [examples.row("job", 1, account=name, user=name, tag=name, cpus=1, jobs=1)]}

    def output(words: str) -> str:
        return run(monkeypatch, capsys, words, **more, meter_visible=False)

    for report in ("cluster UtilizationByTag", "cluster a", "user top", "job sizes flatview"):
        lines = output(f"-n {report}").splitlines()
        assert all(line.isprintable() for line in lines)
        assert len({len(line.split("|")) for line in output(f"-P {report}").splitlines()}) == 1
        assert {len(line.split("|")) for line in output(f"-nP {report}").splitlines()} <= {6, 8}
        table = list(csv.reader(io.StringIO(output(f"{report} --csv"))))
        assert len({len(row) for row in table}) == 1
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for row in table for cell in row)
    (row,) = json.loads(output("cluster UtilizationByTag --json"))["rows"]
    assert row["tag"].removeprefix("\\") == name.removeprefix("\\")


def test_names_cannot_imitate_the_lines_of_the_meter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [examples.row("job", 1, tag="(total)"), examples.row("idle", 2, tag=None)]
    output = run(monkeypatch, capsys, "-nP cluster UtilizationByTag format=tag", rows=rows)
    assert output.split() == ["\\(total)", "(idle)", "(unattributed)", "(total)"]


def test_the_example_of_the_page_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/reports.md").read_text()
    block = page.split("```")[1]
    command, _, text = block.strip().partition("\n")
    assert command == f"$ senergy report cluster AccountUtilizationByUser tree {' '.join(WINDOW)}"
    assert run(monkeypatch, capsys, "cluster AccountUtilizationByUser tree") == f"{text}\n"


NUMBERS = st.none() | st.integers(0, 2**50) | st.floats(0, 1e12)
AMOUNTS = st.builds(
    Amounts,
    st.integers(0, 2**70),
    st.dictionaries(st.sampled_from(("cpu", "dram")), st.integers(0, 2**70)),
    *(NUMBERS, NUMBERS, st.none() | st.integers(0, 9), NUMBERS, NUMBERS),
)


@given(AMOUNTS)
def test_a_sum_of_one_amount_has_the_types_of_sums(one: Amounts) -> None:
    assert json.dumps(total([one]).to_json()) == json.dumps(total([one, Amounts()]).to_json())
