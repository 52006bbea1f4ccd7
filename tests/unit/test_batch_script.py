"""Tests of the parser of batch scripts.

The parser follows the rules of sbatch. The tests also check the fingerprint of a script, which is a digest
of the script and its arguments.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.slurm.batch_script import parse_time_limit, read_script
from slurm_energy.slurm.sbatch_options import LONG, options, words
from slurm_energy.slurm.script_fingerprint import FINGERPRINT_FORM, fingerprint


def read(*lines, path="dir/job.sh", arguments=(), extra=()):
    content = "\n".join(("#!/bin/bash", *lines, "")).encode()
    return read_script(path, content, arguments, extra)


def directives(*texts):
    return read(*(f"#SBATCH {text}" for text in texts), "srun a.out")


def test_a_whole_script():
    script = read(
        "#SBATCH --nodes=2 -c 4   # two options and a comment",
        "# a remark, and an empty line do not end the options",
        "",
        "#SBATCH -t 1-02:30 -J 'my job' --partition=gpu,long",
        '#SBATCH --gres=craynetwork:1,gpu:a100:2 -A "phys ics"',
        "#SBATCH --energy-policy=edp --energy-gpu-cap 250W",
        "#SBATCH --mail-type=END -a 1-9:2,20%3",
        "",
        "module load x",
        "#SBATCH --time=5",
    )
    assert (script.nodes, script.cpus, script.gpus, script.gpu_kind) == (2, 8, 4, "a100")
    assert (script.name, script.partition, script.account) == ("my job", "gpu", "phys ics")
    assert script.time_limit_s == 26.5 * 3600
    assert script.flags == {"ENERGY_POLICY": "edp", "ENERGY_GPU_CAP": "250W"}
    assert (script.command, script.tasks) == ("module load x", 6)
    assert script.notes == ("line 11: #SBATCH after the first command is ignored",)


def test_what_is_not_said():
    script = read("true")
    assert (script.name, script.nodes, script.cpus, script.gpus) == ("job.sh", 1, 1, 0)
    assert (script.time_limit_s, script.partition, script.account, script.flags) == (None, None, None, {})
    assert script.notes == ()


@pytest.mark.parametrize(
    ("texts", "nodes", "cpus", "gpus"),
    [
        (["-N3"], 3, 3, 0),
        (["-N 2-4 --ntasks-per-node=8"], 2, 16, 0),
        (["-n 10 --ntasks-per-node 4"], 1, 10, 0),
        (["-n4", "-c2"], 1, 8, 0),
        (["-N1k"], 1024, 1024, 0),
        (["--gpus=4"], 1, 1, 4),
        (["-G h100:8 -N2"], 2, 2, 8),
        (["--gpus-per-node=a100:4 -N2"], 2, 2, 8),
        (["--gpus-per-task=1 -n6"], 1, 6, 6),
        (["--gres=gpu -N2"], 2, 2, 2),
        (["--gres gpu:2(S:0-1)"], 1, 1, 2),
        (["--gres=gpu:a100=2,gpu:v100=1"], 1, 1, 3),
        (["--tres-per-task=cpu=2,gres/gpu:1 -n3"], 1, 3, 3),
        (["--gpus-per-socket=2 --sockets-per-node=2"], 1, 1, 4),
        (["--gpus=2 --cpus-per-gpu=8"], 1, 16, 2),
        (["--gpus=2 --ntasks-per-gpu=3"], 1, 6, 2),
        (["--gres=lustre:1"], 1, 1, 0),
        (["-N1", "-N2"], 2, 2, 0),
    ],
)
def test_resources(texts, nodes, cpus, gpus):
    script = directives(*texts)
    assert (script.nodes, script.cpus, script.gpus) == (nodes, cpus, gpus)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 600),
        ("10:30", 660),
        ("0:59", 60),
        ("1:02:03", 3780),
        ("2-0", 172800),
        ("1-2", 93600),
        ("1-2:3", 93780),
        ("1-02:03:04", 93840),
        ("UNLIMITED", None),
        ("infinite", None),
        ("0", None),
    ],
)
def test_time_limits(text, seconds):
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "-5", "1-", "1.5", "10m", "9" * 30])
def test_what_is_no_time(text):
    with pytest.raises(UsageError, match="is not a time"):
        parse_time_limit(text)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", []),
        ("  # only a comment", []),
        (" --a b", ["--a", "b"]),
        (" -J 'a b' \"c # d\" e\\#f # g", ["-J", "a b", "c # d", "e#f"]),
        (" -N2 e\\ f \\", ["-N2", "e", "f", ""]),
        (" --job-name=x#y -N2", ["--job-name=x"]),
        (" ''", [""]),
        (" a'b'\"c\"", ["abc"]),
    ],
)
def test_words(line, found):
    assert words(line) == found


def test_options_as_getopt_reads_them():
    line = [
        "-HN2",
        "-t",
        "5",
        "--exclusive",
        "--nice=5",
        "--gpus-per-n=1",
        "--colour=red",
        "--mem",
        "4G",
    ]
    assert list(options(line)) == [
        ("hold", None),
        ("nodes", "2"),
        ("time", "5"),
        ("exclusive", None),
        ("nice", "5"),
        ("gpus-per-node", "1"),
        ("colour", "red"),
        ("mem", "4G"),
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["--cluster=c2"], ("clusters", "c2")),
        (["--cluster", "c2"], ("clusters", "c2")),
        (["--clusters=c2"], ("clusters", "c2")),
        (["--tasks-per-node=4"], ("ntasks-per-node", "4")),
        (["--tasks-per", "4"], ("ntasks-per-node", "4")),
        (["--context", "c"], ("context", "c")),
        (["--ntasks-per-tres", "2"], ("ntasks-per-tres", "2")),
        (["--resources", "fs:1"], ("resources", "fs:1")),  # from Slurm 25.11 on
    ],
)
def test_options_with_a_second_name_and_of_later_releases(line, found):
    assert list(options(line)) == [found]


@pytest.mark.parametrize(
    ("text", "words_of_error"),
    [
        ("--job-name='x", "line 2: a quote ' without its end"),
        ("--gpu=1", "line 2: --gpu: fits several options: one of gpu-bind"),
        ("-t", "line 2: -t: needs a value"),
        ("-J a b", "line 2: 'b' is no option"),
        ("-N two", "line 2: --nodes: 'two' is not a whole number"),
        ("--time=soon", "line 2: --time: 'soon' is not a time"),
        ("--gpus=2x", "line 2: --gpus: 'gpu:2x'"),
    ],
)
def test_errors_name_file_and_line(text, words_of_error):
    with pytest.raises(UsageError) as raised:
        directives(text)
    assert f"dir/job.sh: {words_of_error}" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "first line"),
        (b"echo\n", "first line"),
        (b"#!/bin/sh\r\necho\r\n", "DOS"),
        (b"#!/bin/sh\n\0", "NUL"),
        (b"#!/bin/sh\n" + b"#" * (5 << 20), "longer than"),
    ],
)
def test_files_that_sbatch_refuses(content, why):
    with pytest.raises(UsageError, match=why):
        read_script("x", content)


def test_unknown_options_and_components_are_noted():
    script = directives("--colour=red -N2", "hetjob", "-N4")
    assert script.nodes == 2
    assert script.notes == (
        "a heterogeneous job: only its first component is predicted",
        "--colour: unknown option, ignored",
    )


def test_the_command_line_goes_before_the_script():
    assert read("#SBATCH -N2", "true", extra=["-N", "4"]).nodes == 4
    with pytest.raises(UsageError, match=r"^--sbatch: --nodes: 'x'"):
        read("true", extra=["-N", "x"])


pieces = st.sampled_from(
    [
        *(f"--{name}" for name in sorted(LONG)),
        "-N",
        "-t",
        "=",
        " ",
        "'",
        '"',
        "\\",
        "#",
        "2",
        "gpu:",
        "1-2",
        "\n",
    ]
)


@given(
    st.lists(pieces | st.text(max_size=5), max_size=20).map("".join),
    st.lists(st.text(max_size=5), max_size=3),
)
def test_anything_is_read_or_refused_in_one_line(text, arguments):
    content = f"#!/bin/sh\n#SBATCH {text}\n{text}".encode("utf-8", "replace")
    try:
        script = read_script("x", content, arguments)
    except UsageError as error:
        assert "\n" not in str(error) and str(error).startswith("x")
        return
    assert script.nodes >= 1 and script.cpus >= 1 and script.gpus >= 0
    assert script.time_limit_s is None or script.time_limit_s > 0
    assert FINGERPRINT_FORM.fullmatch(script.fingerprint)


class TestFingerprint:
    def test_of_known_text(self):
        assert fingerprint(b"") == "cbf29ce484222325"  # published test vectors of FNV-1a
        assert fingerprint(b"a") == "af63dc4c8601ec8c"
        assert fingerprint(b"foobar") == "85944171f73967e8"

    def test_leaves_out_what_is_compared_by_itself(self):
        one = b"#!/bin/sh\n#SBATCH -t 10\necho a\n"
        assert fingerprint(one) == fingerprint(
            one.replace(b"#SBATCH -t 10\n", b"#SBATCH -N4\n#SBATCH -t 20\n")
        )
        assert fingerprint(one) != fingerprint(one.replace(b"echo a", b"echo b"))
        assert fingerprint(one) != fingerprint(one.replace(b"#SBATCH", b" #SBATCH"))

    def test_arguments_count_and_are_kept_apart(self):
        found = [
            fingerprint(b"x", arguments) for arguments in ([], [b""], [b"ab"], [b"a", b"b"], [b"b", b"a"])
        ]
        assert len(set(found)) == len(found)
