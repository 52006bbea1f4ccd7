"""Edits of Slurm's files add the lines of slurm-energy and nothing else, and can always be taken back."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.setup import hunk, job_submit_edit, plugstack_edit, slurm_conf_edit
from slurm_energy.setup.conf_text import conf_lines, ends_continued, raw_lines
from slurm_energy.setup.lua_tokens import LuaSyntaxError, lua_tokens
from slurm_energy.setup.site_file import read_site_file, write_site_file
from slurm_energy.slurm import conf_files

LIBRARY = Path("/usr/lib/slurm-energy")
SCRIPT = Path("/etc/slurm/job_submit.lua")
PATTERN = "/usr/lib/slurm-energy/plugstack.d/*.conf"
FRAGMENTS = (
    *(
        "PrologFlags",
        "prologflags",
        "PROLOGFLAGS",
        "JobSubmitPlugins",
        "=",
        " = ",
        "X11",
        "Serial,",
        "lua",
        '"',
    ),
    *(
        "#",
        "\\",
        "\\\\",
        "\\#",
        "\n",
        "\r\n",
        "\\\n",
        " \\ \n",
        "\t",
        "include nodes.conf",
        "NodeName=n1 CPUs=2",
    ),
    *("# slurm-energy setup", "optional x.so", "include /a/*.conf", "\f", "\xa0", "\x00", "é", "\x85"),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=25).map("".join)
LUA_FRAGMENTS = (
    *(
        "function slurm_job_submit(a, b, c)",
        " end",
        "\n",
        "\r\n",
        "return slurm.SUCCESS",
        "return",
        "if x then",
    ),
    *(
        "local x = ",
        '"a\\"b"',
        "[[ long\nreturn ]]",
        "--[==[ c ]==]",
        "-- return\n",
        "do",
        "repeat",
        "until x",
    ),
    *("slurm.log_info('x')", "{", "}", "(", ")", ";", "1e-5", "::a::", "#!lua\n", "x[1][[2]]", " "),
)
SCRIPTS = st.lists(st.sampled_from(LUA_FRAGMENTS), max_size=25).map("".join)


def settings(tmp_path_factory, text):
    conf = tmp_path_factory.mktemp("conf") / "slurm.conf"
    conf.write_bytes(text.encode("latin-1", "replace"))
    return conf_files.read_settings(conf)


def edited(text, hunks):
    """Return a text after an edit, and check that undoing the edit restores the original text."""
    new = hunk.apply(text, hunks)
    assert hunk.revert(new, hunks) == (text, [])
    return new


@given(TEXTS, st.sampled_from(["PrologFlags", "JobSubmitPlugins"]))
def test_an_edit_of_slurm_conf_can_be_taken_back(text, key):
    try:
        change = slurm_conf_edit.add_items(text, key, ["Alloc"], "reason")
    except UnavailableError:
        return
    new = edited(text, [change])
    pairs = [line.pair for line in conf_lines(new) if key.lower() in dict(line.pairs)]
    assert pairs[-1] is not None and pairs[-1][1].split(",")[-1] == "Alloc"


@given(TEXTS)
def test_two_edits_of_slurm_conf_can_be_taken_back(text):
    changes = []
    for key in ("JobSubmitPlugins", "PrologFlags"):
        try:
            change = slurm_conf_edit.add_items(text, key, ["lua"], key)
        except UnavailableError:
            continue
        if any(one.at == change.at for one in changes):
            change = hunk.Hunk(change.at, change.before, change.after, False, change.key, change.items)
        changes.append(change)
    edited(text, changes)


@given(TEXTS, TEXTS, TEXTS)
def test_lines_that_the_site_adds_later_stay(text, above, below):
    above, below = (f"{part}\n" if part else "" for part in (above, below))
    text = f"{text}\n"
    if hunk.NOTE in above + below or "\\\n" in above + text:
        return
    try:
        change = slurm_conf_edit.add_items(text, "PrologFlags", ["Alloc"], "reason")
    except UnavailableError:
        return
    new, missing = hunk.revert(above + hunk.apply(text, [change]) + below, [change])
    assert (new, missing) == (above + text + below, [])


@given(TEXTS)
def test_lines_join_to_the_text(text):
    assert "".join(raw_lines(text)) == text
    lines = list(conf_lines(text))
    assert "".join(text[line.start : line.end] for line in lines) == text
    assert [line.start for line in lines[1:]] == [line.end for line in lines[:-1]]


@given(st.text(alphabet='aA=,#\\ \t\n\r"x', max_size=60))
def test_keys_are_those_of_the_reader(tmp_path_factory, text):
    """The editor of slurm.conf finds the same keys and values as the reader of slurm.conf.

    All other parts of the program use the reader.
    """
    pairs = [line.pair for line in conf_lines(text)]
    if None in [pair for pair, line in zip(pairs, conf_lines(text), strict=True) if line.text.strip()]:
        return
    read = settings(tmp_path_factory, text)
    assert dict(filter(None, pairs)) == {key: values[-1] for key, values in read.items()}


def test_the_last_of_several_lines_is_extended_in_place():
    text = "prologflags=Contain\nA=1\nPROLOGFLAGS = Serial  # one by one\nB=2\n"
    change = slurm_conf_edit.add_items(text, "PrologFlags", ["Alloc"], "why")
    assert edited(text, [change]) == (
        "prologflags=Contain\nA=1\n# slurm-energy setup: why\n"
        "# slurm-energy setup, was: PROLOGFLAGS = Serial  # one by one\n"
        "PrologFlags=Serial,Alloc # one by one\nB=2\n"
    )


def test_continued_lines_and_windows_line_breaks():
    text = "A=1\r\nPrologFlags=\\\r\n  Serial,\\\r\nDeferBatch # x\r\nB=2"
    change = slurm_conf_edit.add_items(text, "PrologFlags", ["Alloc"], "why")
    new = edited(text, [change])
    assert new.splitlines() == [
        "A=1",
        "# slurm-energy setup: why",
        "# slurm-energy setup, was: PrologFlags=\\",
        "# slurm-energy setup, was:   Serial,\\",
        "# slurm-energy setup, was: DeferBatch # x",
        "PrologFlags=Serial,DeferBatch,Alloc # x",
        "B=2",
    ]
    assert "\n" not in new.replace("\r\n", "")


def test_a_line_that_ends_with_a_continuation_does_not_swallow_the_new_one():
    assert ends_continued("A=1 \\ ")
    change = slurm_conf_edit.add_items("A=1 \\", "PrologFlags", ["Alloc"], "why")
    assert edited("A=1 \\", [change]) == "# slurm-energy setup: why\nPrologFlags=Alloc\nA=1 \\"


def test_a_value_with_quotes_and_escapes_is_left_to_the_administrator():
    with pytest.raises(UnavailableError, match="by hand"):
        slurm_conf_edit.add_items('PrologFlags="a b"\n', "PrologFlags", ["Alloc"], "why")
    with pytest.raises(UnavailableError, match="by hand"):
        slurm_conf_edit.add_items("PrologFlags=X11 A=1\n", "PrologFlags", ["Alloc"], "why")


def test_items_that_the_site_adds_later_stay():
    change = slurm_conf_edit.add_items("PrologFlags=Serial\n", "PrologFlags", ["Alloc"], "why")
    new = hunk.apply("PrologFlags=Serial\n", [change]).replace("Serial,Alloc", "Serial,Alloc,X11")
    assert hunk.revert(new, [change]) == ("PrologFlags=Serial,X11\n", [])
    change = slurm_conf_edit.add_items("", "PrologFlags", ["Alloc"], "why")
    new = hunk.apply("", [change]).replace("=Alloc", "=X11,alloc")
    assert hunk.revert(new, [change]) == ("PrologFlags=X11\n", [])


def test_a_setting_that_the_site_removed_stays_removed():
    change = slurm_conf_edit.add_items("A=1\n", "PrologFlags", ["Alloc"], "why")
    assert hunk.revert("A=1\n", [change]) == ("A=1\n", [change])


@given(TEXTS)
def test_plugstack(text):
    change = plugstack_edit.add_include(text, PATTERN)
    assert change is not None
    new = edited(text, [change])
    assert plugstack_edit.add_include(new, PATTERN) is None
    assert new.split("\n")[-2] == f"include {PATTERN}"


def test_plugstack_gets_no_carriage_return():
    change = plugstack_edit.add_include("optional x.so\r\noptional y.so", PATTERN)
    assert edited("optional x.so\r\noptional y.so", [change]).endswith(f"\ninclude {PATTERN}\n")


@given(SCRIPTS | st.text(max_size=40))
def test_job_submit_lua(text):
    try:
        change = job_submit_edit.add_check(text, LIBRARY, SCRIPT)
    except UnavailableError:
        return
    if change is None:
        assert "senergy_submit" in text
        return
    new = edited(text, [change])
    assert job_submit_edit.add_check(new, LIBRARY, SCRIPT) is None


@given(SCRIPTS)
def test_tokens_are_parts_of_the_text(text):
    try:
        tokens = list(lua_tokens(text))
    except LuaSyntaxError:
        return
    assert all(text.startswith(token.text, token.start) for token in tokens)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 'a\nreturn 1", "a string does not end"),
        ("if x then\nreturn 1\n", "a block does not end"),
        ("--[[ x\n", "does not end"),
        ("x = 1 return 2\n", "does not begin a line"),
        ("--[[ x\n]] return 2\n", "does not begin a line"),
        ("local function slurm_job_submit() end\nreturn 1", "slurm_job_submit is a local name"),
        ("local a, slurm_job_modify = f()\nreturn 1", "slurm_job_modify is a local name"),
    ],
)
def test_unusual_scripts_are_left_to_the_administrator(text, why):
    with pytest.raises(UnavailableError, match=why):
        job_submit_edit.add_check(text, LIBRARY, SCRIPT)


def test_a_changed_block_stays():
    text = "return slurm.SUCCESS\n"
    change = job_submit_edit.add_check(text, LIBRARY, SCRIPT)
    new = hunk.apply(text, [change]).replace("pcall(check", "pcall(site, check")
    assert hunk.revert(new, [change]) == (new, [change])


@pytest.mark.skipif(shutil.which("luac") is None, reason="luac is not installed")
@pytest.mark.parametrize("text", ["", "local x = 1\nreturn slurm.SUCCESS", "-- x", "x = [[\nreturn]]\n"])
def test_scripts_are_valid_lua(tmp_path, text):
    script = tmp_path / "job_submit.lua"
    change = job_submit_edit.add_check(text, LIBRARY, SCRIPT)
    for number, new in enumerate((hunk.apply(text, [change]), job_submit_edit.new_script(LIBRARY))):
        script.write_text(new)
        done = subprocess.run(["luac", "-p", script], check=False, capture_output=True)
        assert done.returncode == 0, (number, done.stderr)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_file_of_the_site_that_is_no_file_is_one_error(tmp_path, make):
    make(tmp_path / "plugstack.conf")
    with pytest.raises(ConfigError, match="regular file"):
        read_site_file(tmp_path / "plugstack.conf")


def test_an_access_control_list_stays(tmp_path):
    """A file that is replaced keeps its access control list.

    The test writes the list as bytes, because `getfacl` and `setfacl` may be absent. Each entry
    consists of tag, permissions and id in little-endian order.
    """
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=a\n")
    entries = [(1, 6, -1), (2, 4, 12345), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error.strerror}")
    write_site_file(path, b"ClusterName=b\n", path.stat().st_mode & 0o777, os.geteuid(), os.getegid())
    assert path.read_bytes() == b"ClusterName=b\n"
    assert os.getxattr(path, "system.posix_acl_access") == packed
