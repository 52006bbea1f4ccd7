"""Attacks of another user on a running agent change no settings and reveal no data.

The agent still serves root during an attack.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_node import NodeAgent
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.node, pytest.mark.root]

ATTACKS = Path(__file__).with_name("attacks.py")
OWN_THREAD = Path("/proc/thread-self/schedstat")
NOBODY, ALICE = 65534, 1001
MESSAGES = 10_000
USERS = 4
MOST_MB = 64
HOOK_MS = 1000.0
PUNCTUAL = 0.9
"""Part of root's questions that are answered in time; a machine may be busy with others for a second."""
MIN_QUESTIONS = 20
"""Minimum number of root's questions, so that a few late answers do not decide the test."""
SECRETS = ("alice", "hidden-tag")
TOLD_TO_ALL = {"job_id", "restart_count", "policy", "phase"}
OPERATIONS = ["begin", "end", "step", "set", "energy", "status", "explode", ""]
IDS = st.sampled_from([1, 1, 1, 2, 0, -1, 2**32, 2**64, 1.0, 1e999, "1", True, None, [1], {"id": 1}])


@pytest.fixture(scope="module")
def agent(emulate) -> Iterator[NodeAgent]:
    """An agent on an emulated node on which a job of the user alice runs.

    The job has the whole node and an energy policy that changes settings.
    """
    found = NodeAgent(emulate("epyc-7513-a100"))
    found.folder.chmod(0o711)
    found.start()
    env = found.env(1, policy="powersave", gpu_cap="250", tag="hidden-tag")
    env |= {"SLURM_JOB_UID": str(ALICE), "SLURM_JOB_USER": "alice"}
    begun = found.ask(op="begin", env=env)
    assert begun["ok"] and begun["applied"] and not begun["failed"]
    yield found
    found.remove()


@pytest.fixture
def unharmed(agent: NodeAgent) -> Iterator[None]:
    """Check after a test that attacks of a user have not harmed senergyd.

    The settings and the job must be unchanged, the memory of senergyd must be bounded, and root must still
    get its response.
    """
    before = agent.settings()
    yield
    assert agent.settings() == before
    status = agent.ask(op="status")
    assert [(job["job_id"], job["policy"], job["user"]) for job in status["jobs"]] == [
        (1, "powersave", "alice")
    ]
    assert agent.records() == []
    assert peak_mb(agent) < MOST_MB
    assert "Traceback" not in agent.log()


def peak_mb(agent: NodeAgent) -> float:
    lines = Path(f"/proc/{agent.pid()}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024 / 1e6


def attack(agent: NodeAgent, kind: str, seconds: float = 0.0, uid: int = NOBODY) -> subprocess.Popen[str]:
    command = [sys.executable, str(ATTACKS), str(agent.socket), kind, str(seconds), str(uid), "1"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ends(attacker: subprocess.Popen[str], text: str | None = None) -> dict[str, Any]:
    output, _ = attacker.communicate(text, timeout=120)
    assert attacker.returncode == 0
    return json.loads(output)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
forged_env = st.fixed_dictionaries(
    {},
    optional={
        "SLURM_JOB_ID": st.sampled_from(["1", "2", "0", "-1", "٣", "1\n", "9" * 30]),
        "SLURM_JOB_UID": st.sampled_from(["0", "1001", "65534", "root"]),
        "SLURM_JOB_CPUS_PER_NODE": st.sampled_from(["64", "1(x99)", "x"]),
        "SLURMD_NODENAME": st.sampled_from(["n1", "../n1", "\x00"]),
        "SPANK_ENERGY_POLICY": st.sampled_from(["performance", "monitor", "\x1b[31m", "x" * 3000]),
        "SPANK_ENERGY_GPU_CAP": st.sampled_from(["400", "1e9", "-1", "NaN"]),
        "LD_PRELOAD": st.just("/tmp/x.so"),
    },
)
orders = st.fixed_dictionaries(
    {"op": st.sampled_from(OPERATIONS)},
    optional={
        "env": forged_env | values,
        "job_id": IDS,
        "uid": st.just(0),
        "user": st.just("root"),
        "step": st.sampled_from(["0", "batch", "../x", ""]),
        "event": st.sampled_from(["start", "end"]),
        "fresh": st.booleans() | st.just(1),
        "cap_watts": st.sampled_from([100, None, 1e999, -1, "400"]),
        "gpu_cap_watts": st.sampled_from([100, None, 10**400]),
    },
)
texts = orders.map(json.dumps) | st.dictionaries(st.text(max_size=8), values, max_size=4).map(json.dumps)
doubled = st.tuples(orders, orders).map(lambda pair: json.dumps(pair[0])[:-1] + "," + json.dumps(pair[1])[1:])
truncated = st.tuples(texts, st.floats(0, 1)).map(lambda pair: pair[0][: int(len(pair[0]) * pair[1])])
nested = st.tuples(st.sampled_from(["[", '{"op":', '{"op":[']), st.integers(1, 900)).map(
    lambda t: t[0] * t[1]
)
long = st.integers(3000, 9000).map(lambda size: json.dumps({"op": "status", "x": "x" * size}))
crafted = (texts | doubled | truncated | nested | long).map(lambda text: text.encode()) | st.binary(
    max_size=60
)


def craft(wanted: int) -> list[bytes]:
    """Return hostile input lines (without line breaks) for tests of a socket.

    A fifth of the `wanted` lines is drawn from the hypothesis strategies. The other lines are random
    mutations of earlier lines.
    """
    lines: list[bytes] = []

    @settings(
        max_examples=wanted // 5,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(crafted)
    def collect(line: bytes) -> None:
        lines.append(line)

    collect()
    chance = random.Random(20260111)
    while len(lines) < wanted:
        line = bytearray(chance.choice(lines))
        for _ in range(chance.randint(1, 4)):
            at = chance.randint(0, len(line))
            line[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        lines.append(bytes(line))
    return [line.replace(b"\n", b" ") for line in lines]


def send(agent: NodeAgent, lines: list[bytes]) -> list[str]:
    """Send message lines to the agent from several users at once and return the responses.

    Each user sends its share of the lines and stays within its rate limit.
    """
    shares = [lines[first::USERS] for first in range(USERS)]
    texts = ["".join(base64.b64encode(line).decode() + "\n" for line in share) for share in shares]
    with concurrent.futures.ThreadPoolExecutor(USERS) as pool:
        attackers = [attack(agent, "messages", uid=NOBODY - number) for number in range(USERS)]
        told = list(pool.map(ends, attackers, texts))
    answers = [""] * len(lines)
    for first, found in enumerate(told):
        answers[first::USERS] = found["answers"]
    return answers


@pytest.mark.usefixtures("unharmed")
def test_crafted_messages_of_a_user_change_and_reveal_nothing(agent: NodeAgent) -> None:
    lines = craft(MESSAGES)
    assert len(lines) >= MESSAGES
    orders = sum(b'"op": "set"' in line or b'"op": "begin"' in line for line in lines)
    assert orders > MESSAGES // 50
    answers = send(agent, lines)
    for line, answer in zip(lines, answers, strict=True):
        assert not any(secret in answer for secret in SECRETS), (line, answer)
        found = json.loads(answer)
        if found["ok"]:
            assert b"status" in line and "components" not in found, (line, answer)
            assert [set(job) for job in found["jobs"]] == [TOLD_TO_ALL], (line, answer)
        else:
            assert found["code"] in (2, 5, 6), (line, answer)
            assert len(answer) < 1000


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    "kinds", [("hold",), ("deaf", "slow"), ("flood", "ask"), ("brackets",)], ids="+".join
)
def test_root_is_answered_while_a_user_attacks(agent: NodeAgent, kinds: tuple[str, ...]) -> None:
    waits = []
    while len(waits) < MIN_QUESTIONS:  # repeated on a machine that is too slow for the questions
        attackers = [attack(agent, kind, 4.0) for kind in kinds]
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            waits.append(wait_of_root_ms(agent))
            time.sleep(0.02)
        told = [ends(attacker) for attacker in attackers]
        # One attack may starve the other, which is harmless; together they were an attack.
        assert sum(found.get("opened", 0) + found.get("answered", 0) for found in told) > 100, told
    assert sorted(waits)[int(PUNCTUAL * len(waits))] < HOOK_MS, told


def wait_of_root_ms(agent: NodeAgent) -> float:
    """Return the milliseconds that root waits for a response of senergyd.

    Two delays are subtracted in which a thread was ready to run but had no processor: the delay of this
    thread, and the longest delay of a thread of senergyd. The delays of several threads of senergyd overlap,
    so their sum could exceed the wait and hide a late response.
    """
    begun = time.perf_counter()
    before = run_queue_ms(agent)
    assert ask_at(agent.socket.with_name("agent.sock.root"), {"op": "status"})["ok"]
    delays = {thread: delay - before.get(thread, 0.0) for thread, delay in run_queue_ms(agent).items()}
    wait_ms = (time.perf_counter() - begun) * 1e3
    own_ms = delays.pop(OWN_THREAD)
    return wait_ms - own_ms - max(delays.values(), default=0.0)


def run_queue_ms(agent: NodeAgent) -> dict[Path, float]:
    """Return how long each thread of senergyd and the calling thread have waited for a processor.

    The delays are in milliseconds since the start of the thread. Source: sched-stats.rst of the Linux kernel.
    """
    files = [*Path(f"/proc/{agent.pid()}/task").glob("*/schedstat"), OWN_THREAD]
    delays = {}
    for file in files:
        with contextlib.suppress(OSError):  # the thread has ended
            delays[file] = int(file.read_text().split()[1]) / 1e6
    return delays


def ask_at(path: Path, message: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(str(path))
        connection.sendall(json.dumps(message).encode() + b"\n")
        with connection.makefile("rb") as lines:
            return json.loads(lines.readline())


@pytest.mark.usefixtures("unharmed")
def test_a_user_can_neither_use_root_s_door_nor_touch_the_agent_s_files(agent: NodeAgent) -> None:
    program = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
folder, failures = sys.argv[1], []
def attempt(name, action):
    try:
        action()
    except OSError as error:
        failures.append(error.errno)
    else:
        print("could", name)
door = socket.socket(socket.AF_UNIX)
attempt("connect", lambda: door.connect(folder + "/agent.sock.root"))
attempt("unlink", lambda: os.unlink(folder + "/agent.sock"))
attempt("bind", lambda: socket.socket(socket.AF_UNIX).bind(folder + "/other.sock"))
attempt("list", lambda: os.listdir(folder + "/state"))
for name in ("journal.json", "spool/000000000000-x.json", "sessions/9.0.json", "lock"):
    attempt("link " + name, lambda: os.symlink("/etc/passwd", folder + "/state/" + name))
    attempt("write " + name, lambda: open(folder + "/state/" + name, "w"))
print(len(failures))
"""
    command = [sys.executable, "-c", program, str(agent.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "12\n"


def test_what_was_planted_in_the_spool_is_neither_followed_nor_waited_for(emulate, tmp_path: Path) -> None:
    """Links and pipes in the spool and session directories are neither followed nor waited for.

    Other users may have planted them if they could write to the state directory for some time.
    """
    agent = NodeAgent(emulate("epyc-7513-a100"))
    secret = tmp_path / "secret"
    secret.write_text('{"root": "only"}')
    try:
        before = agent.settings()
        for name in ("spool", "sessions"):
            folder = agent.folder / "state" / name
            folder.mkdir(parents=True, mode=0o700)
            (folder / "000000000001-a.json").symlink_to(secret)
            os.mkfifo(folder / "000000000002-b.json")
            (folder / "000000000003-c.json").hardlink_to(secret)
            (folder / "000000000004-d.trace").symlink_to("/dev/zero")
        agent.start()
        agent.begin(2, policy="powersave")
        agent.end(2)
        assert agent.settings() == before
        deadline = time.monotonic() + 60
        while agent.ask(op="status")["spooled"] > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert agent.ask(op="status")["spooled"] == 1
        assert secret.read_text() == '{"root": "only"}'
        assert secret.stat().st_nlink == 3  # rejected under other names, never written to
    finally:
        agent.stop()
        agent.remove()


def test_an_agent_of_which_others_could_exchange_a_file_does_not_start(emulate) -> None:
    agent = NodeAgent(emulate("epyc-7513-a100"))
    try:
        for path, mode in ((agent.config, 0o666), (agent.folder, 0o777), (agent.folder, 0o733)):
            safe = path.stat().st_mode & 0o7777
            path.chmod(mode)
            with pytest.raises(AssertionError, match=f"mode {mode:04o}: expected owner uid 0"):
                agent.start()
            assert agent.log().count("\n") == 1
            (agent.folder / "log").unlink()
            path.chmod(safe)
            agent.process = None
    finally:
        agent.remove()
