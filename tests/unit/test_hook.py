"""Tests of senergy-hook as slurmd runs it.

The tests check what the hook sends. No response, error or absence of senergyd may make a job
fail. The program is built with the address and undefined-behaviour sanitizers. An error that
they detect ends the program with another exit code.
"""

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = [REPOSITORY / "prolog_epilog" / name for name in ("hook.c", "job_hook.c", "message.c")]
SOURCES += [REPOSITORY / "prolog_epilog" / "deferred_message.c", REPOSITORY / "spank" / "exchange.c"]
JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": "1000", "SLURM_JOB_RESTART_COUNT": "0"}
OK = b'{"ok": true, "policy": "monitor", "applied": 0, "failed": 0}\n'
LIMIT = 64 * 1024
PATIENCE_MS = "20000"
"""Time-out for a response that does arrive: this process, which sends it, may have to wait for a core."""

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")


class Agent:
    """A server in place of senergyd, for tests of the hook.

    It answers each line with the bytes in `answer`. If `answer` is None, it does not answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer: bytes | None = OK
        self.lines: list[bytes] = []
        self.arrived = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def reset(self) -> None:
        self.answer = OK
        self.lines.clear()
        self.arrived.clear()

    def message(self):
        """Return the one message that the hook has sent since `reset` or the last call."""
        assert self.arrived.wait(60)
        self.arrived.clear()
        assert len(self.lines) == 1
        line = self.lines.pop()
        assert len(line) <= LIMIT
        return json.loads(line)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
                self.lines.append(lines.readline())
                self.arrived.set()
                if self.answer is None:
                    lines.readline()  # until the hook gives up
                else:
                    connection.sendall(self.answer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hook")


@pytest.fixture(scope="module")
def defaults(folder):
    return folder / "defaults"


@pytest.fixture(scope="module")
def hook(folder, defaults):
    program = folder / "senergy-hook"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror", f"-I{REPOSITORY / 'spank'}"]
    flags += [f'-DDEFAULTS_FILE="{defaults}"']
    subprocess.run(["gcc", *flags, "-o", program, *SOURCES], check=True, timeout=120)
    for name in ("prolog", "50-epilog.senergy"):
        (folder / name).symlink_to(program)
    return program


@pytest.fixture(scope="module")
def server(folder):
    agent = Agent(folder / "agent.sock")
    yield agent
    agent.close()


@pytest.fixture
def agent(server):
    server.reset()
    return server


def call(program, *arguments, env=JOB):
    return subprocess.run(
        [program, *arguments],
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
        check=False,
    )


def tell(hook, agent, operation, env=JOB):
    """Run the program that Slurm calls at the start or end of a job (the hook).

    A fake agent responds to the message of the hook.
    """
    return call(hook, operation, "--socket", agent.path, "--reply-timeout-ms", PATIENCE_MS, env=env)


def assert_one_line(done, *parts):
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("operation", ["begin", "end"])
def test_sends_what_slurm_says_about_the_job_and_nothing_else(hook, agent, operation):
    wanted = JOB | {
        "SLURMD_NODENAME": "n1",
        "SLURM": "",
        "SPANK_ENERGY_POLICY": "edp",
        "SPANK_ENERGY_X": "a=b",
    }
    other = {"PATH": "/bin", "SPANK_OTHER": "1", "MY_SLURM_JOB_ID": "9", "ENERGY_POLICY": "x"}
    done = tell(hook, agent, operation, wanted | other)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert agent.message() == {"op": operation, "env": wanted}


def test_an_empty_environment_makes_an_empty_object(hook, agent):
    assert tell(hook, agent, "begin", {}).returncode == 0
    assert agent.message() == {"op": "begin", "env": {}}


@pytest.mark.parametrize(("name", "operation"), [("prolog", "begin"), ("50-epilog.senergy", "end")])
def test_by_name_the_options_come_from_the_defaults_file(hook, agent, defaults, folder, name, operation):
    defaults.write_text(
        f'# a comment\nOTHER="--bad"\nSENERGY_HOOK_OPTIONS="--socket {agent.path} --hold'
        f' --reply-timeout-ms {PATIENCE_MS}"\nX=1\n'
    )
    done = call(folder / name)
    assert (done.returncode, done.stderr) == (0, "")
    assert agent.message() == {"op": operation, "env": JOB}


def test_bad_options_in_the_defaults_file_are_reported_and_do_not_fail_the_job(hook, agent, defaults, folder):
    for options in ("--sokcet /x", "--reply-timeout-ms soon", "surplus", "--hold " * 100 + "x"):
        defaults.write_text(f"SENERGY_HOOK_OPTIONS=--socket {agent.path} {options}\n")
        done = call(folder / "prolog")
        assert done.returncode == 0
        assert agent.message()["op"] == "begin"
        if "hold" not in options:
            assert f"{defaults}: bad SENERGY_HOOK_OPTIONS=" in done.stderr
    defaults.write_bytes(b"\0" + b"x" * 100_000)
    assert call(folder / "prolog").returncode == 0


def test_without_a_defaults_file_the_built_in_ones_hold(hook, defaults, folder):
    defaults.unlink(missing_ok=True)
    done = call(folder / "prolog")
    assert done.returncode == 0
    assert_one_line(done, "begin: job 17: /run/senergy/agent.sock: ")


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_defaults_file_that_others_can_write_is_ignored(hook, agent, defaults, folder, mode):
    defaults.write_text(f"SENERGY_HOOK_OPTIONS=--socket {agent.path}\n")
    defaults.chmod(mode)
    done = call(folder / "prolog")
    defaults.unlink()
    assert done.returncode == 0
    assert f"{defaults}: others could write it: chown root and chmod go-w: it is ignored" in done.stderr
    assert agent.lines == []


def test_neither_links_nor_the_environment_lead_the_hook_elsewhere(hook, agent, defaults, folder):
    options = f"--socket {agent.path}"
    target = folder / "planted"
    target.write_text(f"SENERGY_HOOK_OPTIONS={options}\n")
    defaults.symlink_to(target)
    names = ("SENERGY_HOOK_OPTIONS", "SENERGY_SOCKET", "SENERGY_CONFIG", "SLURM_ENERGY_SOCKET", "SOCKET")
    done = call(folder / "prolog", env=JOB | dict.fromkeys(names, options))
    defaults.unlink()
    assert done.returncode == 0
    assert_one_line(done, "begin: job 17: /run/senergy/agent.sock: ")
    assert agent.lines == []


@pytest.mark.skipif(os.geteuid() != 0, reason="the door is for root")
def test_root_knocks_at_the_door_that_users_cannot_fill(hook, agent, folder):
    door = Agent(folder / "agent.sock.root")
    try:
        assert tell(hook, agent, "begin").stderr == ""
        assert door.message()["op"] == "begin"
        assert agent.lines == []
    finally:
        door.close()
    assert tell(hook, agent, "begin").stderr == ""  # nobody behind the door any more
    assert agent.message()["op"] == "begin"
    door.path.unlink()


def fails(agent, folder, case):
    """Make the test's senergyd fail in the way that `case` names.

    Return the socket path for the hook, and the words that its error report must contain.
    """
    if case == "absent":
        return folder / "no.sock", "No such file or directory"
    if case == "dead":
        with socket.socket(socket.AF_UNIX) as dead, contextlib.suppress(OSError):
            dead.bind(str(folder / "dead.sock"))
        return folder / "dead.sock", "Connection refused"
    if case == "too long a path":
        return "/" + "x" * 200, "path of the socket is too long"
    answers = {
        "silent": (None, "no answer in time"),
        "closing": (b"", "closed the connection without an answer"),
        "endless": (b"x" * 100_000, "answer is too long"),
        "half a line": (b'{"ok": true}', "closed the connection without an answer"),
        "refusing": (b'{"ok": false, "error": "no such job", "code": 6}\n', "no such job"),
        "babbling": (b"hello \x1b[31m\n", "hello ?[31m"),
        "spaced": (b'{"code": 4, "ok" :\tfalse}\n', "senergyd refused"),
        "empty": (b"\n", "senergyd refused"),
    }
    agent.answer, words = answers[case]
    return agent.path, words


CASES = [
    "absent",
    "dead",
    "too long a path",
    "silent",
    "closing",
    "endless",
    "half a line",
    "refusing",
    "babbling",
]
CASES += ["spaced", "empty"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("operation", "hold", "code"), [("begin", [], 0), ("begin", ["--hold"], 1), ("end", ["--hold"], 0)]
)
def test_a_failure_is_one_line_and_only_hold_fails_the_prolog(
    hook, agent, folder, case, operation, hold, code
):
    path, words = fails(agent, folder, case)
    patience_ms = "60" if case == "silent" else PATIENCE_MS
    done = call(hook, operation, *hold, "--socket", path, "--reply-timeout-ms", patience_ms)
    if path == agent.path:
        agent.message()  # which may come after the hook has given up, and is none of the next test's
    assert done.returncode == code
    assert_one_line(done, f"senergy-hook: {operation}: job 17: ", words)
    effect = {"begin": "without energy settings", "end": "restores the settings"}[operation]
    assert ("the job is held (--hold)" if code else effect) in done.stderr


LATE = """
#include <poll.h>
#include <time.h>
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    static int calls;
    int result = __real_clock_gettime(clock, now);
    struct pollfd answer = {3, POLLIN, 0};
    if (++calls > 1) {
        poll(&answer, 1, 20000);
        now->tv_sec += 1000;
    }
    return result;
}
"""


def test_an_answer_that_is_there_counts_however_late_the_hook_is_run(folder, agent):
    """A response that has arrived counts, even if the hook's clock is beyond the deadline by then."""
    (folder / "late.c").write_text(LATE)
    program = folder / "late-hook"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", f"-I{REPOSITORY / 'spank'}", "-Wl,--wrap=clock_gettime"]
    command = ["gcc", *flags, "-o", program, *SOURCES, folder / "late.c"]
    subprocess.run(command, check=True, timeout=120)
    done = call(program, "begin", "--socket", agent.path, "--reply-timeout-ms", PATIENCE_MS)
    assert (done.returncode, done.stderr) == (0, "")
    assert agent.message()["op"] == "begin"


@pytest.fixture
def deferred(folder):
    directory = folder / "away.sock.deferred"
    directory.mkdir(mode=0o700)
    yield directory
    directory.chmod(0o700)
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("operation", "effect"), [("begin", "record begin when senergyd is back"), ("end", "ends the job when")]
)
def test_what_senergyd_does_not_take_is_left_for_it(hook, folder, deferred, operation, effect):
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    done = call(hook, operation, "--socket", folder / "away.sock")
    assert done.returncode == 0
    assert_one_line(done, "No such file or directory", effect)
    (path,) = deferred.iterdir()
    assert before <= int(path.name[:20]) <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes()) == {"op": operation, "env": JOB}


def test_left_messages_sort_by_time(hook, folder, deferred):
    for operation in ("begin", "end", "begin"):
        call(hook, operation, "--socket", folder / "away.sock")
    found = [json.loads(path.read_bytes())["op"] for path in sorted(deferred.iterdir())]
    assert found == ["begin", "end", "begin"]


def test_what_is_refused_or_held_is_not_left(hook, agent, folder, deferred):
    call(hook, "begin", "--hold", "--socket", folder / "away.sock")
    agent.answer = b'{"ok": false, "error": "no", "code": 2}\n'
    tell(hook, agent, "end")
    assert agent.message()["op"] == "end"
    assert list(deferred.iterdir()) == []


@pytest.mark.parametrize("spoil", ["mode", "link", "file", "full"])
def test_nothing_is_left_where_it_should_not_be(hook, folder, deferred, spoil, tmp_path):
    if spoil == "mode":
        deferred.chmod(0o770)
    elif spoil == "full":
        for number in range(1000):
            (deferred / str(number)).touch()
    else:
        deferred.rmdir()
        deferred.symlink_to(tmp_path) if spoil == "link" else deferred.touch()
    done = call(hook, "end", "--socket", folder / "away.sock")
    assert_one_line(done, "senergyd restores the settings at its next start or job")
    if spoil == "link":
        assert list(tmp_path.iterdir()) == []
    if spoil in ("link", "file"):
        deferred.unlink()
        deferred.mkdir(mode=0o700)
    elif spoil == "full":
        assert len(list(deferred.iterdir())) == 1000


def test_a_daemon_that_accepts_nobody_is_given_up(hook, folder):
    path = folder / "full.sock"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(path))
        done = call(hook, "begin", "--socket", path, "--connect-timeout-ms", "20")
    assert done.returncode == 0
    assert_one_line(done, "timed out connecting")


ENVIRONMENT_BYTES = st.binary(max_size=200).map(lambda raw: raw.replace(b"\0", b""))


@examples(60)
@example({b"A": b"\xf8\x90\x80\x80", b"B": b"\xf4\x90\x80\x80", b"C": b"\xed\xa0\x80"})
@given(st.dictionaries(st.from_regex(rb"[^=\0]{0,12}", fullmatch=True), ENVIRONMENT_BYTES, max_size=6))
def test_any_bytes_become_valid_json(hook, server, variables):
    server.reset()
    environment = {b"SLURM_" + name: value for name, value in variables.items()}
    assert tell(hook, server, "begin", environment).stderr == ""
    sent = server.message()["env"]
    for name, value in environment.items():
        try:
            assert sent[name.decode()] == value.decode()
        except UnicodeDecodeError:
            assert len(sent) <= len(environment)
            assert any("\ufffd" in text for item in sent.items() for text in item)


@given(text=st.text(max_size=300).filter(lambda text: "\0" not in text and text.isprintable()))
@examples(40)
def test_unicode_arrives_unchanged(hook, server, text):
    server.reset()
    assert tell(hook, server, "begin", JOB | {"SLURM_JOB_NAME": text}).returncode == 0
    assert server.message()["env"]["SLURM_JOB_NAME"] == text


def test_of_too_large_an_environment_the_largest_is_left_out(hook, agent):
    big = {"SLURM_NODELIST": "n" * 40_000, "SLURM_JOB_COMMENT": '"' * 20_000, "SLURM_JOB_WORK_DIR": "/home"}
    done = tell(hook, agent, "begin", JOB | big)
    assert done.returncode == 0
    assert_one_line(done, "larger than 64 KiB")
    kept = {"SLURM_JOB_COMMENT": big["SLURM_JOB_COMMENT"], "SLURM_JOB_WORK_DIR": "/home"}
    sent = agent.message()["env"]
    assert len(sent) == len(JOB) + 2
    assert {k: v for k, v in sent.items() if k not in JOB} in (
        kept,
        {"SLURM_NODELIST": big["SLURM_NODELIST"], "SLURM_JOB_WORK_DIR": "/home"},
    )


def test_a_crafted_environment_does_not_push_out_what_senergyd_needs(hook, agent):
    crafted = {f"SPANK_ENERGY_{i}": "x" for i in range(9000)} | {"SPANK_ENERGY_TAG": "y" * 70_000}
    needed = JOB | {
        "SLURM_JOB_PARTITION": "p" * 200,
        "SPANK_ENERGY_CAP": "200",
        "SLURM_JOB_WORK_DIR": "/home",
    }
    assert tell(hook, agent, "begin", crafted | needed).returncode == 0
    sent = agent.message()["env"]
    assert needed.items() <= sent.items()
    assert "SPANK_ENERGY_TAG" not in sent


@pytest.mark.parametrize("size", range(LIMIT - 60, LIMIT + 20, 4))
def test_a_message_fills_the_limit_and_never_exceeds_it(hook, agent, size):
    value = "v" * (size - 30)
    assert tell(hook, agent, "begin", {"SLURM_A": value}).returncode == 0
    message = agent.message()  # asserts the limit
    fits = len(json.dumps({"op": "begin", "env": {"SLURM_A": value}}, separators=(",", ":"))) + 2 <= LIMIT
    assert message["env"] == ({"SLURM_A": value} if fits else {})


@pytest.mark.parametrize(
    "arguments",
    [[], ["start"], ["begin", "end"], ["begin", "--sokcet", "x"], ["begin", "--socket"], ["begin", "-x"]]
    + [["begin", "--reply-timeout-ms", value] for value in ("0", "-1", "1x", "", "1e3", "60001", "9" * 30)],
)
def test_bad_usage_is_told_and_ends_with_2(hook, arguments):
    done = call(hook, *arguments)
    assert done.returncode == 2
    assert_one_line(done, "senergy-hook: ")


def test_help_names_every_option(hook):
    done = call(hook, "--help")
    assert done.returncode == 0
    for option in ("begin|end", "--socket", "--connect-timeout-ms", "--reply-timeout-ms", "--hold"):
        assert option in done.stdout


def test_a_closed_stderr_does_not_matter(hook):
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [hook, "begin", "--socket", "/nonexistent"]
    done = subprocess.run(command, env=JOB, stderr=write_end, timeout=30, check=False)
    os.close(write_end)
    assert done.returncode == 0


@pytest.mark.slow
def test_the_program_builds_with_make_and_has_both_names(tmp_path):
    for source in ("spank", "prolog_epilog"):
        ignore = shutil.ignore_patterns("*.so", "senergy-hook")
        shutil.copytree(REPOSITORY / source, tmp_path / source, symlinks=True, ignore=ignore)
    command = ["make", "--silent", "-C", tmp_path / "prolog_epilog", "CFLAGS_EXTRA=-Wall -Wextra -Werror"]
    subprocess.run(command, check=True, timeout=120)
    for name in ("senergy-hook", "prolog", "epilog"):
        assert os.access(tmp_path / "prolog_epilog" / name, os.X_OK)
