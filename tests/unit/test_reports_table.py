from __future__ import annotations

import csv
import re

import pytest
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st
from report_examples import answer, governor, record, usages

from slurm_energy.errors import UsageError
from slurm_energy.records import AppliedSetting, EnergyRecord
from slurm_energy.reports.acct.acct_fields import LISTING, catalogue, default_columns
from slurm_energy.reports.acct.acct_fields import parse_format as parse_acct_format
from slurm_energy.reports.acct.fields import FIELDS, Field, Style, find_in
from slurm_energy.reports.figure_format import DisplayUnits, with_unit
from slurm_energy.reports.labels.json_view import job_object
from slurm_energy.reports.labels.settings import short_settings
from slurm_energy.reports.labels.terminal_label import policy_text
from slurm_energy.reports.table import TableLayout, delimited, fit, parse_columns, table_lines
from slurm_energy.reports.usage import AccountedRecord, JobUsage, summarise
from slurm_energy.safe_text import display_width, escape_controls

NAMES = [field.name for field in catalogue(None)]


def find_field(name: str) -> Field[JobUsage]:
    return find_in(FIELDS, name, "--format", LISTING)


WIDTHS = st.none() | st.tuples(st.booleans(), st.integers(1, 4096))


@given(st.lists(st.tuples(st.sampled_from(NAMES), WIDTHS, st.booleans()), min_size=1, max_size=8))
def test_reads_every_format_that_can_be_written(
    items: list[tuple[str, tuple[bool, int] | None, bool]],
) -> None:
    words = []
    for name, width, lower in items:
        suffix = "" if width is None else f"%{'-' if width[0] else ''}{width[1]}"
        words.append((name.lower() if lower else name) + suffix)
    columns = parse_acct_format(",".join(words), None)
    assert [column.field.name for column in columns] == [name for name, _, _ in items]
    for column, (_, width, _) in zip(columns, items, strict=True):
        assert (column.left, column.width) == (width or (column.field.left, column.field.width))


@given(st.text(max_size=30))
def test_any_text_is_a_format_or_a_usage_error(text: str) -> None:
    try:
        assert parse_acct_format(text, None)
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("JobID,ConsumedEnrgy", "--format: unknown field 'ConsumedEnrgy': did you mean ConsumedEnergy?"),
        ("zzz", "--format: unknown field 'zzz': senergy acct --helpformat lists all"),
        ("JobID%", "--format: bad width in 'JobID%': write JobID%20 or %-20"),
        ("JobID%0", "--format: bad width in 'JobID%0': write JobID%20 or %-20"),
        ("EDP%5000", "--format: bad width in 'EDP%5000': write EDP%20 or %-20"),
        ("EDP%1e3", "--format: bad width in 'EDP%1e3': write EDP%20 or %-20"),
        (",,", "--format: no field given: senergy acct --helpformat lists all"),
    ],
)
def test_says_what_is_wrong_with_a_format(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_acct_format(text, None)
    assert str(caught.value) == said


def test_the_beginning_of_a_name_is_enough_and_the_exact_name_goes_first() -> None:
    assert find_field("part").name == "Partition"
    assert find_field("edp").name == "EDP"
    assert find_field("edpr").name == "EDPRaw"


@pytest.mark.parametrize("width", [20, 78, 80, 100, 132, 200])
def test_the_default_table_fits_the_terminal(width: int) -> None:
    columns = default_columns(None, width)
    used = sum(column.widened(column.field.name).width for column in columns) + len(columns) - 1
    assert used <= max(width, 21)
    names = [column.field.name for column in columns]
    assert (
        names[:7]
        == [*("JobID", "JobName", "Policy", "State", "Elapsed", "ConsumedEnergy", "Quality")][: len(names)]
    )
    assert width < 78 or len(names) >= 7
    assert len(default_columns(None, None)) >= len(names)


def test_every_scaled_field_has_a_raw_twin_in_the_base_unit() -> None:
    (job,) = usages(examples.gpu_job())
    asked = {"Cap", "GPUCap"}
    for field in FIELDS:
        if field.value_format == "scaled" and field.name not in asked:
            assert find_field(f"{field.name}Raw").value(job) == field.value(job)


@pytest.mark.parametrize(
    ("text", "width", "left", "expected"),
    [
        ("abc", 5, False, "  abc"),
        ("abc", 5, True, "abc  "),
        ("abcde", 5, False, "abcde"),
        ("abcdef", 5, False, "abcd+"),
        ("abcdef", 1, True, "+"),
    ],
)
def test_truncates_and_pads_like_sacct(text: str, width: int, left: bool, expected: str) -> None:
    assert fit(text, width, left) == expected


@pytest.mark.parametrize(
    ("value", "units", "expected"),
    [
        (None, DisplayUnits(), ""),
        (0.0, DisplayUnits(), "0J"),
        (0.25, DisplayUnits(), "0.25J"),
        (999.994, DisplayUnits(), "999.99J"),
        (999.996, DisplayUnits(), "1.00kJ"),
        (1000.0, DisplayUnits(), "1kJ"),
        (4802.0, DisplayUnits(), "4.80kJ"),
        (12_345_678.0, DisplayUnits(), "12.35MJ"),
        (4802.0, DisplayUnits(convert=False), "4802"),
        (4802.1256, DisplayUnits(convert=False), "4802.126"),
        (4802.0, DisplayUnits("M"), "0.004802"),
        (4802.0, DisplayUnits("K", convert=False), "4.802"),
    ],
)
def test_scales_like_sacct_and_carries_the_unit(
    value: float | None, units: DisplayUnits, expected: str
) -> None:
    assert units.text(value, "J") == expected


@given(st.floats(0, 1e17), st.sampled_from(["", "K", "M", "G", "T", "P"]))
def test_automatic_and_fixed_prefixes_agree(value: float, prefix: str) -> None:
    text = DisplayUnits().text(value, "J")
    number, letters = text.rstrip("kMGTPJ"), text.lstrip("0123456789.")
    assert letters[-1] == "J"
    power = "kMGTP".index(letters[0]) + 1 if len(letters) == 2 else 0
    assert float(number) * 1000.0**power == pytest.approx(value, rel=0.006, abs=0.006)
    assert set(DisplayUnits(prefix, convert=False).text(value, "J")) <= {*"0123456789."}


PARSABLE = [Style.parsable(), Style.parsable(DisplayUnits("K")), Style.parsable(DisplayUnits(convert=False))]


@given(st.sampled_from(PARSABLE), st.sampled_from([field for field in FIELDS if field.unit]))
def test_output_for_programs_has_one_unit_per_column_and_names_it(
    style: Style, field: Field[JobUsage]
) -> None:
    """Output for programs uses one fixed unit per column, and the header names the unit.

    The unit does not depend on the value: 1 J, 3.5 MJ, 3.7 MJ and 1 PJ are written in the same unit.
    """
    (job,) = usages(examples.gpu_job())
    assert re.fullmatch(rf"{field.name}\(k?{re.escape(field.unit)}\)", field.header(style))
    assert re.fullmatch(r"[0-9.]*", field.text(job, style))
    for value in (1.0, 3.5e6, 3.7e6, 1e15):
        scale = 1000.0 if style.units.prefix and field.value_format == "scaled" else 1.0
        assert float(field.write(value, style)) == pytest.approx(value / scale)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "unknown"), (0.0, "0 J"), (1.0, "1.00 J"), (9.996, "10.0 J"), (98.53, "98.5 J"),
        (999.6, "1.00 kJ"), (1234.0, "1.23 kJ"), (17600.0, "17.6 kJ"), (3.1e9, "3.10 GJ"),
    ],
)  # fmt: skip
def test_three_significant_digits_in_sentences(value: float | None, expected: str) -> None:
    assert with_unit(value, "J") == expected


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    info = examples.job_info(1, name="a\x1b[31m\nb|c")
    rows = usages([examples.answer(examples.record(1), info)])
    for layout, delimiter in ((TableLayout(False), "|"), (TableLayout(False, "|"), r"\x7c")):
        (line,) = table_lines(rows, parse_columns(FIELDS, "JobName%30", "--format", LISTING), Style(), layout)
        assert line.strip() == rf"a\x1b[31m\nb{delimiter}c"


@given(
    st.text(max_size=40),
    st.text(st.characters(codec="ascii", exclude_characters="x"), min_size=1, max_size=3),
)
def test_names_cannot_shift_the_columns_of_a_delimited_row(name: str, delimiter: str) -> None:
    if not delimiter.isprintable() or set(delimiter) & set("\\0123456789abcdefuUnrtN"):
        return
    line = delimited(["1", name, "3"], delimiter)
    assert line.split(delimiter)[0::2] == ["1", "3"]
    assert line.isprintable()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", ['"=HYPERLINK(""x"",""y"")"', '"a', '"\t=1', 'a "b" c', "'=\"1"])
def test_quotation_marks_in_names_are_read_as_they_are(name: str, delimiter: str) -> None:
    rows = usages([examples.answer(examples.record(1), examples.job_info(1, name=name))])
    columns = parse_columns(FIELDS, "JobName,JobID", "--format", LISTING)
    lines = list(table_lines(rows * 2, columns, Style.parsable(), TableLayout(False, delimiter)))
    escaped = escape_controls(name).replace(delimiter, f"\\x{ord(delimiter):02x}")
    assert list(csv.reader(lines, delimiter=delimiter)) == [[escaped, "1"]] * 2
    assert all(line.count(delimiter) == 1 for line in lines)


@given(st.text(max_size=40), st.integers(1, 30), st.booleans())
def test_cells_take_just_their_columns_of_the_terminal(text: str, width: int, left: bool) -> None:
    cell = fit(text, width, left)
    assert display_width(cell) == width
    assert cell.isprintable()


def test_short_form_of_settings() -> None:
    (cpu,), (gpu,) = usages(examples.cpu_job()), usages(examples.gpu_job())
    assert short_settings(cpu.records) == "gov=powersave freq=800-2100MHz"
    assert short_settings(gpu.records) == "cpu.cap=180W|180W! gpu.cap=250W"


def usage_of(*records: EnergyRecord) -> JobUsage:
    (usage,) = summarise([AccountedRecord.from_json(answer(one, None)) for one in records])
    return usage


SET, FAILED = governor("policy0", "a", "b"), governor("policy0", "a", "b", applied=None)


@pytest.mark.parametrize(
    ("policy", "applied", "said"),
    [
        ("edp", [()], "none"),
        ("edp", [(SET,)], "all"),
        ("edp", [(SET, FAILED)], "part"),
        ("edp", [(FAILED,)], "none"),
        ("cap", [(SET,), ()], "part"),
        ("cap", [(SET,), (SET, SET)], "all"),
        ("cap", [(), ()], "none"),
        ("monitor", [()], ""),
        ("monitor", [(SET,)], "all"),  # redefined by the site, or caps set while the job ran
    ],
)
def test_applied_part_of_a_policy(policy: str, applied: list[tuple[AppliedSetting, ...]], said: str) -> None:
    records = [record(7, f"n{i}", policy=policy, applied=one) for i, one in enumerate(applied)]
    job = usage_of(*records)
    assert find_field("Applied").text(job, Style()) == said
    assert find_field("Policy").text(job, Style()) == policy
    words = {"none": f"{policy} (default, not set)", "part": f"{policy} (default, partly set)"}
    assert policy_text(job) == words.get(said, f"{policy} (default)")
    assert job_object(job)["applied"] == (said or None)
