"""Tests of the measurement of the energy of program sections, with a fake agent.

The fake agent returns energies that the tests know.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hardware_tree import Tree

from slurm_energy.profiling import counter_reader, summary

pytestmark = pytest.mark.slow

PATIENT = "from slurm_energy.profiling import energy_reader; energy_reader._TIMEOUT_S = 20.0\n"
"""For answers that come: whoever gives them may have to wait for a core."""


class FakeAgent:
    """Fake senergyd that answers the message `energy` and counts its connections.

    With each response the energy is 10 J of cpu and 1 J of dram higher.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "agent.sock"
        self.config = folder / "energy.toml"
        self.config.write_text(f'[agent]\nsocket = "{self.path}"\n')
        self.connections = 0
        self.messages: list[Any] = []
        self.refusal: str | None = None
        self.silent = False
        self.late_s: float | None = None
        self.answers_per_connection = self.dies_at = 10**9
        self._asked = 0
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shut down the socket, wait for the end of its thread, and close the socket.

        The thread must end first. A thread that still waited in accept(2) would use the next file that gets
        the same descriptor number.
        """
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # A program may end, or stop waiting for a response, while the response is on its way.
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
            for number, line in enumerate(lines, 1):
                if number == self.dies_at:
                    return
                if not self.silent:
                    connection.sendall(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
                if number == self.answers_per_connection:
                    connection.shutdown(socket.SHUT_RDWR)
                    (self.folder / f"closed{self.connections}").touch()

    def _answer(self, message: Any) -> dict[str, Any]:
        with self._lock:
            while (self.folder / "hold").exists():
                time.sleep(0.01)
            self.messages.append(message)
            self._asked += 1
            if self.refusal:
                return {"ok": False, "error": self.refusal, "code": 5}
            joules = {"cpu": 10.0 * self._asked, "dram": 1.0 * self._asked, "gpu[0]": 0.0}
            answer = {"ok": True, "components": joules, "watts": None, "elapsed_s": 1.0, "age_s": 0.0005}
            if self.late_s is None:
                return answer
            return {**answer, "sampled_s": time.clock_gettime(time.CLOCK_BOOTTIME) + self.late_s}

    def env(self, **more: str) -> dict[str, str]:
        inherited = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "HOME") if key in os.environ}
        job = {"SLURM_JOB_ID": "12", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n1"}
        names = {"SENERGY_CONFIG": str(self.config), "SENERGY_PROFILE_DIR": str(self.folder / "out")}
        return {**inherited, **job, **names, **more}

    def run(self, program: str, *, patient: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program and return the completed process with its output.

        The last line of the output is JSON.
        """
        text = "import json, slurm_energy\n" + PATIENT * patient + textwrap.dedent(program)
        return self.spawn([sys.executable, "-c", text], **env)

    def spawn(self, argv: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env=self.env(**env),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def lines(self) -> list[dict[str, Any]]:
        return summary.read_lines(self.folder / "out")


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with tempfile.TemporaryDirectory(prefix="senergy-") as folder:
        agent = FakeAgent(Path(folder))
        yield agent
        agent.close()


def paths(lines: list[dict[str, Any]]) -> list[str]:
    return ["/".join(line["path"]) for line in lines]


def test_a_section_is_the_difference_of_two_readings(agent: FakeAgent) -> None:
    done = agent.run("""
        with slurm_energy.profile("solve") as section:
            assert section.seconds is None
        print(json.dumps([section.energy_joules, section.total_joules, section.age_s]))
    """)
    assert json.loads(done.stdout) == [{"cpu": 10.0, "dram": 1.0, "gpu[0]": 0.0}, 11.0, 0.001]
    (line,) = agent.lines()
    assert (line["section"], line["source"], line["failed"]) == ("solve", "agent", None)
    assert (line["job_id"], line["step"], line["node"], line["rank"]) == (12, "0", "n1", 3)
    assert line["mean_watts"] == pytest.approx(11.0 / line["seconds"])
    assert agent.messages[0] == {"op": "energy", "job_id": 12, "fresh": True}


def test_a_late_sample_is_reported(agent: FakeAgent) -> None:
    agent.late_s = 0.25
    agent.run("with slurm_energy.profile('a'): pass")
    agent.late_s = 3600.0  # another clock: the age that the agent reports then counts
    agent.run("with slurm_energy.profile('b'): pass")
    ages = {line["section"]: line["age_s"] for line in agent.lines()}
    assert 0.5 <= ages["a"] < 60
    assert ages["b"] == 0.001


def test_the_file_is_named_by_job_and_rank(agent: FakeAgent) -> None:
    agent.run("with slurm_energy.profile('a'): pass")
    (path,) = (agent.folder / "out").iterdir()
    assert path.name.startswith("job12-step0-rank3-n1-")


def test_sections_share_one_connection(agent: FakeAgent) -> None:
    agent.run("""
        for _ in range(20):
            with slurm_energy.profile("a"): pass
    """)
    assert agent.connections == 1
    assert len(agent.lines()) == 20


def test_sections_nest_and_exceptions_pass_through(agent: FakeAgent) -> None:
    done = agent.run("""
        try:
            with slurm_energy.profile("outer"):
                with slurm_energy.profile("inner"):
                    raise KeyError("x")
        except KeyError as error:
            print(json.dumps(str(error)))
        with slurm_energy.profile("after"): pass
    """)
    assert json.loads(done.stdout) == "'x'"
    found = {"/".join(line["path"]): line for line in agent.lines()}
    assert set(found) == {"outer", "outer/inner", "after"}
    assert [found[path]["failed"] for path in ("outer", "outer/inner", "after")] == [
        "KeyError",
        "KeyError",
        None,
    ]
    assert found["outer/inner"]["total_joules"] < found["outer"]["total_joules"]


def test_functions_coroutines_and_generators_are_measured_at_every_call(agent: FakeAgent) -> None:
    done = agent.run("""
        import asyncio
        @slurm_energy.profile("f")
        def f(n):
            "Doc."
            return f(n - 1) if n else 7
        @slurm_energy.profile("c")
        async def c():
            await asyncio.sleep(0.05)
            return 8
        @slurm_energy.profile("g")
        def g():
            yield 9
        async def both():
            return await asyncio.gather(c(), c())
        print(json.dumps([f(1), f.__doc__, asyncio.run(both()), list(g())]))
    """)
    assert json.loads(done.stdout) == [7, "Doc.", [8, 8], [9]]
    lines = agent.lines()
    assert sorted(paths(lines)) == ["c", "c", "f", "f/f", "g"]
    assert all(line["seconds"] > 0.04 for line in lines if line["section"] == "c")


def test_threads_have_sections_of_their_own(agent: FakeAgent) -> None:
    agent.run("""
        import threading
        def work():
            with slurm_energy.profile("part"): pass
        with slurm_energy.profile("main"):
            threads = [threading.Thread(target=work, name=f"t{i}") for i in range(8)]
            for t in threads: t.start()
            for t in threads: t.join()
    """)
    lines = agent.lines()
    assert sorted(paths(lines)) == ["main"] + ["part"] * 8
    assert {line["thread"] for line in lines} == {"MainThread"} | {f"t{i}" for i in range(8)}


def test_a_forked_child_measures_for_itself(agent: FakeAgent) -> None:
    done = agent.run("""
        import os
        with slurm_energy.profile("before"):
            pass
        with slurm_energy.profile("around"):
            pid = os.fork()
            if pid == 0:
                with slurm_energy.profile("child"): pass
        if pid == 0:
            os._exit(0)
        print(json.dumps(os.waitpid(pid, 0)[1]))
    """)
    assert json.loads(done.stdout) == 0
    assert agent.connections == 2
    lines = agent.lines()
    assert sorted(paths(lines)) == ["around", "around/child", "before"]
    pids = {line["section"]: line["pid"] for line in lines}
    assert pids["child"] != pids["around"] == pids["before"]


def test_without_an_agent_the_program_runs_on_and_is_warned_once(agent: FakeAgent) -> None:
    agent.close()
    agent.path.unlink()
    done = agent.run("""
        for _ in range(3):
            with slurm_energy.profile("a") as section: pass
        print(json.dumps([section.total_joules, section.mean_watts, section.seconds > 0]))
    """)
    assert done.returncode == 0
    assert json.loads(done.stdout) == [None, None, True]
    assert done.stderr.count("unknown") == 1
    assert "senergyd" in done.stderr
    assert [line["total_joules"] for line in agent.lines()] == [None] * 3


def test_a_refusal_is_reported_in_the_agent_s_words(agent: FakeAgent) -> None:
    agent.refusal = "energy: job 12 belongs to another user"
    done = agent.run("""
        with slurm_energy.profile("a") as section: pass
        print(json.dumps(section.total_joules))
    """)
    assert json.loads(done.stdout) is None
    assert "belongs to another user" in done.stderr


def test_an_agent_that_never_responds_costs_the_program_one_wait(agent: FakeAgent) -> None:
    agent.silent = True
    done = agent.run(
        """
        import time
        with slurm_energy.profile("a"): pass
        start = time.monotonic()
        for _ in range(1000):
            with slurm_energy.profile("a") as section: pass
        print(json.dumps([section.total_joules, time.monotonic() - start < 30]))
    """,
        patient=False,
    )
    assert json.loads(done.stdout) == [None, True]
    assert len(agent.messages) == 0
    assert agent.connections < 10


def test_a_connection_that_the_agent_closed_is_opened_again(agent: FakeAgent) -> None:
    agent.answers_per_connection = 3
    agent.run("""
        import os, time
        for number in range(1, 3):
            with slurm_energy.profile("a"): pass
            deadline = time.monotonic() + 60
            while number == 1 and not os.path.exists("closed1") and time.monotonic() < deadline:
                time.sleep(0.01)
    """)
    assert [line["total_joules"] for line in agent.lines()] == [11.0] * 2
    assert agent.connections == 2


def test_a_section_does_not_wait_for_the_agent(agent: FakeAgent) -> None:
    done = agent.run("""
        import os, pathlib
        with slurm_energy.profile("warm"): pass
        pathlib.Path("hold").touch()
        for _ in range(20):
            with slurm_energy.profile("a") as section: pass
        os.unlink("hold")  # a section that waits would have timed out
        print(json.dumps(section.total_joules))
    """)
    assert json.loads(done.stdout) == 11.0
    assert [line["total_joules"] for line in agent.lines()] == [11.0] * 21


def test_an_agent_that_dies_within_a_section_makes_that_one_unknown(agent: FakeAgent) -> None:
    agent.dies_at = 2
    agent.run("""
        import time
        with slurm_energy.profile("lost"): time.sleep(0.2)
        with slurm_energy.profile("outer"):
            with slurm_energy.profile("inner"): pass
    """)
    found = {line["section"]: line["total_joules"] for line in agent.lines()}
    assert found["lost"] is None
    assert len(found) == 3  # the program continued
    assert agent.connections > 1


def test_names_are_checked_when_the_section_is_made(agent: FakeAgent) -> None:
    done = agent.run("""
        from slurm_energy.errors import UsageError
        refused = 0
        for name in ("", "a\\nb", "x" * 201, None):
            try: slurm_energy.profile(name)
            except UsageError: refused += 1
        print(json.dumps(refused))
    """)
    assert json.loads(done.stdout) == 4


def test_the_lines_are_in_memory_and_optionally_only_there(agent: FakeAgent) -> None:
    done = agent.run(
        """
        from slurm_energy import profiling
        with slurm_energy.profile("a"): pass
        print(json.dumps([line["section"] for line in profiling.results()]))
        """,
        SENERGY_PROFILE_DIR="",
    )
    assert json.loads(done.stdout) == ["a"]
    assert sorted(path.name for path in agent.folder.iterdir()) == ["agent.sock", "energy.toml"]


def test_a_directory_that_cannot_be_written_stops_nothing(agent: FakeAgent) -> None:
    done = agent.run(
        "with slurm_energy.profile('a'): pass\nprint('on')", SENERGY_PROFILE_DIR=str(agent.config / "out")
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.count("not written") == 1


def test_the_package_itself_imports_nothing() -> None:
    text = "import sys, slurm_energy; print([m for m in sys.modules if m.startswith('slurm_energy')])"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "['slurm_energy']"


COMMAND = PATIENT + "import sys; from slurm_energy.cli.main import main; sys.exit(main())"
SENERGY = [sys.executable, "-c", COMMAND, "profile"]


def test_a_command_is_measured_and_its_exit_code_is_ours(agent: FakeAgent) -> None:
    done = agent.spawn([*SENERGY, "--name", "job", "--", "sh", "-c", "echo out; exit 7"])
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.startswith("senergy profile: job: 11.00 J, ")
    assert "cpu 10.00 J, dram 1.00 J" in done.stderr
    assert paths(agent.lines()) == ["job"]


def test_a_command_s_own_sections_go_to_the_same_place(agent: FakeAgent) -> None:
    program = "import slurm_energy\nwith slurm_energy.profile('inner'): pass"
    agent.spawn([*SENERGY, "--dir", "elsewhere", "--quiet", sys.executable, "-c", program])
    found = summary.read_lines(agent.folder / "elsewhere")
    assert sorted(paths(found)) == sorted(["inner", Path(sys.executable).name])


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--", "no-such-command"], 127, "no such command"),
        (["--", "/"], 126, "Permission denied"),
        (["--", "sh", "-c", "kill -9 $$"], 137, "J"),
        ([], 2, "no command"),
        (["--json", "--", "true"], 2, "--gather"),
    ],
)
def test_exit_codes(agent: FakeAgent, argv: list[str], code: int, words: str) -> None:
    done = agent.spawn([*SENERGY, *argv])
    assert done.returncode == code
    assert words in done.stderr


SLOW_TO_START = """\
import subprocess, sys, time
class Slow(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        time.sleep(0.5)
subprocess.Popen = Slow
from slurm_energy.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("senergy", [SENERGY, [sys.executable, "-c", SLOW_TO_START, "profile"]])
def test_a_signal_to_us_ends_the_command(agent: FakeAgent, senergy: list[str]) -> None:
    """A signal that the profiled command sends to `senergy` ends the command.

    The command may send the signal before `senergy` has noted the command's start.
    """
    script = "trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.05; done"
    done = subprocess.run([*senergy, "--", "sh", "-c", script], env=agent.env(), timeout=60, check=False)
    assert done.returncode == 5
    assert len(agent.lines()) == 1


def test_the_command_ignores_signals_that_our_caller_ignores(agent: FakeAgent) -> None:
    argv = ["nohup", *SENERGY, "--", "sh", "-c", "kill -HUP $PPID; kill -HUP $$; exit 6"]
    done = subprocess.run(argv, env=agent.env(), timeout=60, check=False, capture_output=True)
    assert done.returncode == 6


def test_counters_are_read_directly_outside_slurm(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpus(4).two_packages()
    source = counter_reader.open_counter_reader(tmp_path)
    assert source is not None
    highest = 262143328850
    first = source.read()
    tree.put("sys/class/powercap/intel-rapl:1/energy_uj", highest)
    source.read()
    tree.put("sys/class/powercap/intel-rapl:1/energy_uj", 999_939)  # wrapped: 1 J after the highest value
    second = source.read()
    source.close()
    assert first is not None and second is not None
    assert second.joules["cpu"] == pytest.approx((highest + 1e6) / 1e6)
    assert second.joules["dram"] == 0.0


def test_a_counter_that_could_not_be_read_stays_unknown(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpus(4).two_packages()
    source = counter_reader.open_counter_reader(tmp_path)
    assert source is not None
    tree.put("sys/class/powercap/intel-rapl:1/energy_uj", "x")
    source.read()
    tree.put("sys/class/powercap/intel-rapl:1/energy_uj", 5)
    found = source.read()
    source.close()
    assert found is not None
    assert (found.joules["cpu"], found.joules["dram"]) == (None, 0.0)


def test_without_counters_there_is_no_source(tmp_path: Path) -> None:
    assert counter_reader.open_counter_reader(tmp_path) is None
