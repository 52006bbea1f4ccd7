"""Tests of slurm-energy's energy plugin, built with sanitizers and called as Slurm calls it.

The test plays the agent.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property_examples import examples

ROOT = Path(__file__).resolve().parents[2]
PLUGINS, SPANK = ROOT / "plugins", ROOT / "spank"
DRIVER = Path(__file__).parent / "native" / "energy_plugin_driver.c"
HEADERS = Path("/usr/include/slurm/slurm.h")
NODE, STEP = 6, 7
NO_VAL = 0xFFFFFFFE
ANSWERED, KNOWS_NOTHING, FAILED = "0", "1", "2"
pytestmark = [
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed"),
    pytest.mark.skipif(not HEADERS.exists(), reason="Slurm's headers are not installed"),
]
ANYTHING = examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("energy") / "driver"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread"]
    flags += ["-Wl,--wrap=connect"]
    names = ("acct_gather_energy_senergy.c", "agent_reading.c", "energy_counter.c")
    sources = [*(PLUGINS / name for name in names), SPANK / "exchange.c", DRIVER]
    command = ["gcc", *flags, f"-I{PLUGINS}", f"-I{SPANK}", "-o", program, *sources]
    subprocess.run(command, check=True, timeout=60)
    return program


class Agent:
    """A stand-in for the agent. It gives the same answer to every request until the test changes it.

    The answer None means that the agent does not respond.
    """

    def __init__(self, path: Path) -> None:
        self.answer: str | None = '{"ok":true,"known":false}'
        self.requests: list[dict] = []
        self.silent: list[socket.socket] = []
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def tell(self, joules: float, epoch: str = "a", watts: float | None = None) -> None:
        self.answer = json.dumps(
            {"ok": True, "epoch": epoch, "joules": joules, "watts": watts}, separators=(",", ":")
        )

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(60)
        self.path.unlink()
        for connection in self.silent:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection.makefile("r") as lines:
                self.requests.append(json.loads(lines.readline()))
            if self.answer is None:
                self.silent.append(connection)
                continue
            connection.sendall(self.answer.encode() + b"\n")
            connection.close()


class Plugin:
    """A process that has loaded Slurm's energy plugin of slurm-energy, controlled by the test."""

    def __init__(self, program: Path, socket_path: Path) -> None:
        self.process = subprocess.Popen(
            [program],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"SENERGY_SOCKET": str(socket_path)},
        )

    def __call__(self, command: str) -> list[str]:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def joules(self, kind: int = STEP, hint: int = 0) -> int:
        return int(self(f"poll {kind} {hint}")[1])

    def logged(self) -> int:
        """Return the number of messages in the log. Only daemons that run as root write messages."""
        return int(self("logged")[0])

    def close(self) -> str:
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors


IS_ROOT = os.geteuid() == 0


@pytest.fixture
def agent(tmp_path):
    agent = Agent(tmp_path / "agent.sock")
    yield agent
    if agent.listener.fileno() >= 0:
        agent.close()


@pytest.fixture
def plugin(program, tmp_path):
    plugin = Plugin(program, tmp_path / "agent.sock")
    yield plugin
    plugin.close()


def test_the_value_is_cumulative_whatever_the_struct_holds(agent, plugin):
    """The plugin returns the total energy so far, whatever the struct that Slurm passes contains.

    When the first task ends, Slurm passes the zeroed struct of another task.
    """
    agent.tell(1000)
    assert plugin.joules() == 1000
    agent.tell(1500)
    assert plugin.joules(hint=1000) == 1500
    assert plugin.joules(hint=0) == 1500
    assert plugin.joules(hint=10**18) == 1500
    assert {request["op"] for request in agent.requests} == {"acct_gather_energy"}


def test_slurmd_gets_watts_and_unknown_watts_are_no_val(agent, plugin):
    agent.tell(10, watts=123.6)
    assert plugin("update") == ["0"]
    assert plugin(f"poll {NODE}")[:3] == ["0", "10", "124"]
    agent.tell(20, watts=None)
    assert plugin(f"poll {NODE}")[:3] == ["0", "20", str(NO_VAL)]
    assert plugin("sensors") == ["1"]


def test_without_an_agent_there_are_0_joules_one_message_and_no_failure(plugin):
    for _ in range(5):
        assert plugin(f"poll {NODE}") == ["0", "0", str(NO_VAL), str(NO_VAL)]
    assert plugin.logged() == 1 * IS_ROOT


def test_the_output_of_jobs_has_no_message(program, tmp_path):
    """The energy plugin logs nothing in slurmstepd, whose messages appear in the output of the job."""
    stepd = tmp_path / "slurmstepd"
    shutil.copy(program, stepd)
    plugin = Plugin(stepd, tmp_path / "agent.sock")
    assert plugin.joules() == 0
    assert plugin(f"poll {STEP}")[3] == "0"  # the mean watts, which Slurm would show as a number
    assert plugin.logged() == 0
    assert plugin.close() == ""


def test_the_value_stays_while_the_agent_is_away_and_when_it_lost_its_state(agent, plugin, tmp_path):
    agent.tell(500)
    assert plugin.joules() == 500
    agent.close()
    assert plugin.joules() == 500
    again = Agent(tmp_path / "agent.sock")
    again.tell(700)  # the state was restored
    assert plugin.joules() == 700
    again.tell(690)  # the time of its absence was divided a little differently
    assert plugin.joules() == 700
    again.tell(5, epoch="b")  # the state was lost
    assert plugin.joules() == 700
    again.tell(30, epoch="b")
    assert plugin.joules() == 725
    assert plugin.logged() == 2 * IS_ROOT  # absent, and back
    again.close()


@ANYTHING
@given(
    readings=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2**63 - 1)), min_size=1, max_size=20)
)
def test_the_value_never_falls_and_never_exceeds_what_was_reported(agent, program, tmp_path, readings):
    plugin = Plugin(program, tmp_path / "agent.sock")
    last = 0
    for epoch, reading in readings:
        agent.tell(reading, epoch)
        value = plugin.joules()
        assert value >= last
        assert value >= reading or value > 2**62
        last = value
    assert last <= sum(reading for _, reading in readings)
    plugin.close()


def test_a_silent_agent_is_not_waited_for_again_at_once(agent, plugin):
    agent.tell(100)
    assert plugin.joules() == 100
    agent.answer = None
    for _ in range(20):
        assert plugin.joules() == 100
    assert len(agent.requests) < 12  # the pauses double: ten more requests would take minutes
    assert plugin.logged() == 1 * IS_ROOT


def test_an_absent_agent_is_asked_again_at_once_however_slow_the_node(agent, plugin, tmp_path):
    """Slurm's energy plugin tries to reach an absent agent again at each request, without a pause.

    A pause would be wrong, because the next request may be the last one of a job step. Slurm shows the
    energy up to this request. The test also simulates a slow node.
    """
    agent.tell(100)
    assert plugin.joules() == 100
    agent.close()
    assert plugin("slow 30") == ["30"]
    assert plugin.joules() == 100  # nothing listens: no such file
    refused = socket.socket(socket.AF_UNIX)
    refused.bind(str(tmp_path / "agent.sock"))
    assert plugin.joules() == 100  # connection refused
    refused.close()
    tmp_path.joinpath("agent.sock").unlink()
    again = Agent(tmp_path / "agent.sock")
    again.tell(300)
    assert plugin.joules() == 300
    again.close()


def test_a_refusal_and_garbage_change_nothing(agent, plugin):
    agent.tell(100)
    assert plugin.joules() == 100
    for answer in (
        '{"ok":false,"error":"\\"epoch\\":\\"x\\",\\"joules\\":999,","code":5}',
        "",
        "x" * 3000,
        '{"ok":true,"epoch":"a","joules":-5,"watts":1}',
        '{"ok":true,"epoch":"a","joules":1e30,"watts":1}',
        '{"ok":true,"epoch":"a","joules":99999999999999999999,"watts":1}',
        '{"ok":true,"epoch":"","joules":500,"watts":1}',
        f'{{"ok":true,"epoch":"{"e" * 80}","joules":500,"watts":1}}',
        '{"ok":true,"joules":500}',
        '{"ok":true,"known":false}',
    ):
        agent.answer = answer
        assert plugin.joules() == 100


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_moment_of_lowered_rights_is_not_reported(agent, plugin, tmp_path):
    tmp_path.joinpath("agent.sock").chmod(0o600)
    agent.tell(100)
    assert plugin.joules() == 100
    assert plugin("drop 65534") == ["0"]
    assert plugin.joules() == 100
    assert plugin("regain") == ["0"]
    assert plugin.logged() == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_agent_of_another_user_is_not_believed(plugin, tmp_path):
    path = tmp_path / "agent.sock"
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    tmp_path.chmod(0o777)
    answer = '{"ok":true,"epoch":"a","joules":9,"watts":1}'
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        f"    c, _ = s.accept(); c.sendall(b'{answer}\\n'); c.close()\n"
    )
    argv = ["python3", "-c", code, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, user=65534, cwd="/") as impostor:
        try:
            assert impostor.stdout.readline() == "ready\n"
            assert plugin.joules() == 0
            assert plugin.logged() == 1 * IS_ROOT
        finally:
            impostor.kill()


@pytest.mark.slow
@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="latin-1", exclude_characters="\n\r\0"), max_size=300))
def test_any_answer_is_parsed_without_harm(plugin, text):
    for answer in (text, '{"ok":true' + text, '{"ok":true,"epoch":"a","joules":' + text):
        assert plugin("parse " + answer)[0] in (ANSWERED, KNOWS_NOTHING, FAILED)


def test_a_whole_answer_is_parsed(plugin):
    answer = '{"ok":true,"epoch":"f00","joules":42,"watts":12.5}'
    assert plugin("parse " + answer) == [ANSWERED, "f00", "42", "13"]
    assert plugin("parse " + answer.replace("12.5", "null")) == [ANSWERED, "f00", "42", "unknown0"]
