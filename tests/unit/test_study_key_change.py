"""Tests of the function that changes single keys in the text of energy.toml.

The tests check which keys change, that other lines stay untouched, and which changes are refused.
"""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.config.schema_document import toml
from slurm_energy.errors import ConfigError
from slurm_energy.study.rollout.key_change import KeyChange, changed_text, undone_text, value_at

SITE = """\
# energy of the cluster
title_like = "a # b"  # kept

[tuning]
mode = "off"   # until the audit
max_probes = 5

[defaults]
partition = { cpu = "monitor" }

[[budgets]]
name = "hall"
watts = 1000.0

[priority]
partitions = [
    "gpu",  # only these
    "cpu",
]
"""


def test_a_value_is_replaced_and_its_comment_stays() -> None:
    text = changed_text(SITE, [KeyChange(("tuning", "mode"), "advise")])
    assert 'mode = "advise"  # until the audit\n' in text
    assert text.replace('"advise"  #', '"off"   #') == SITE


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (KeyChange(("tuning", "partition", "gpu"), "on"), 'partition.gpu = "on"  # mark'),
        (
            KeyChange(("defaults", "partition", "gpu"), "edp"),
            'partition = { "cpu" = "monitor", "gpu" = "edp" }  # mark',
        ),
        (KeyChange(("defaults", "user", "a.b"), "edp"), 'user."a.b" = "edp"  # mark'),
        (KeyChange(("power_saving", "mode"), "on"), 'mode = "on"  # mark'),
        (KeyChange(("priority", "partitions"), ["gpu"]), 'partitions = ["gpu"]  # mark'),
    ],
)
def test_a_key_is_written_where_its_table_is(change: KeyChange, line: str) -> None:
    text = changed_text(SITE, [change], "mark")
    assert line in text.splitlines()
    assert value_at(text, change.path) == change.value


def test_a_table_of_a_list_is_appended() -> None:
    change = KeyChange(("budgets",), {"name": "study", "cluster": True, "watts": 800.0}, is_list_table=True)
    text = changed_text(SITE, [change])
    assert text.startswith(SITE)
    assert tomllib.loads(text)["budgets"][1] == {"name": "study", "cluster": True, "watts": 800.0}


def test_a_form_that_hides_the_table_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(ConfigError, match=r'write: tuning.mode = "on"'):
        changed_text(
            'tuning.max_probes = 5\n[tuning.partition]\ncpu = "off"\n', [KeyChange(("tuning", "mode"), "on")]
        )


def test_undo_of_an_inline_table_and_of_a_list_table_leaves_keys_of_the_site() -> None:
    changes = [
        KeyChange(("defaults", "partition", "gpu"), "edp"),
        KeyChange(("budgets",), {"name": "study", "watts": 800.0}, is_list_table=True),
    ]
    changed = changed_text(SITE, changes, "mark")
    assert undone_text(changed, changes, SITE, "mark") == (SITE, [])
    edited = changed.replace('{ "cpu"', '{ "big" = "cap", "cpu"') + '[[budgets]]\nname = "new"\nwatts = 5.0\n'
    text, lost = undone_text(edited, changes, SITE, "mark")
    assert lost == []
    assert value_at(text, ("defaults", "partition")) == {"big": "cap", "cpu": "monitor"}
    assert [table["name"] for table in value_at(text, ("budgets",))] == ["hall", "new"]


def test_a_key_that_the_site_changed_is_left_alone() -> None:
    change = KeyChange(("tuning", "mode"), "advise")
    edited = changed_text(SITE, [change]).replace('"advise"', '"on"')
    assert undone_text(edited, [change], SITE, "") == (edited, [change])


_names = st.sampled_from(["tuning", "priority", "a b", "x-1", 'q"uote'])
_values = st.one_of(
    st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.lists(st.integers(0, 3), max_size=2)
)
_tables = st.dictionaries(_names, st.dictionaries(_names, _values, max_size=3), max_size=3)


@examples(30)
@given(_tables, st.lists(st.tuples(_names, _names, _values), min_size=1, max_size=3), st.booleans())
def test_only_the_intended_keys_change_and_undo_restores_the_text(
    tables: dict[str, dict[str, object]], wanted: list[tuple[str, str, object]], is_dos: bool
) -> None:
    wanted = list({(table, key): (table, key, value) for table, key, value in wanted}.values())
    lines = ["# head", ""]
    for name, keys in tables.items():
        lines.append(f"[{toml(name)}] # {name}")
        lines += [f"{toml(key)} = {toml(value)}  # of the site" for key, value in keys.items()]
    text = "\n".join(lines).replace("\n", "\r\n" if is_dos else "\n")
    text += "\r\n" if is_dos else "\n"
    expected = tomllib.loads(text)
    for table, key, value in wanted:
        expected.setdefault(table, {})[key] = value
    changes = [KeyChange((table, key), value) for table, key, value in wanted]
    changed = changed_text(text, changes, "mark")
    assert tomllib.loads(changed) == expected
    assert undone_text(changed, changes, text, "mark") == (text, [])
    head = "# edited later\n[site]\nkey = 1\n"
    assert undone_text(head + changed, changes, text, "mark") == (head + text, [])
