"""Guided fuzzing of the agent's input: agent_input.py TARGET [libFuzzer options].

The targets are:
- `messages`: a line on the socket, up to the check of its fields;
- `hook_environment`: the environment of a hook, up to the request for a policy;
- `server`: the lines of a user, up to the response.

Each input must yield a value, or one of the project's errors with one short line. `make fuzz`
runs all targets for a while. The test suite runs a bounded number of rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["slurm_energy"]):
    from slurm_energy.agent.sockets import messages
    from slurm_energy.agent.sockets.server import AgentServer
    from slurm_energy.config import Config
    from slurm_energy.errors import EnergyError, ForbiddenError
    from slurm_energy.policies import validate_flags
    from slurm_energy.slurm.hook_environment import job_context

NOBODY = 65534
MOST_CHARACTERS = 1000
CHECKS: tuple[Callable[..., Any], ...] = (
    messages.environment,
    messages.job_id,
    messages.fresh,
    messages.step,
    messages.caps,
    messages.progress,
)
NAMES = (
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JOB_UID",
    "SLURM_JOB_RESTART_COUNT",
    "SLURM_JOB_USER",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURMD_NODENAME",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_EXCLUSIVE",
    "SPANK_ENERGY_POLICY",
    "SPANK_ENERGY_CAP",
    "SPANK_ENERGY_GPU_CAP",
    "SPANK_ENERGY_SLOWDOWN",
    "SPANK_ENERGY_TUNING",
    "SPANK_ENERGY_CPU_FREQ",
    "SPANK_ENERGY_GPU_CLOCK",
    "SPANK_ENERGY_POWER_PROFILE",
    "SPANK_ENERGY_MODEL",
    "SPANK_ENERGY_TAG",
)
CONFIG = Config()


class Refusing:
    """Job manager for fuzz tests that refuses every operation except the status query.

    It acts like the real job manager when an unprivileged user asks for the job of another user.
    """

    def status(self, _reader: int | None) -> dict[str, Any]:
        return {"jobs": []}

    def energy(self, job_id: int, *, reader: int | None, fresh: bool) -> tuple[int, dict[str, Any]]:
        assert reader == NOBODY
        assert 0 < job_id < 2**32
        assert fresh in (True, False)
        raise ForbiddenError("energy: job belongs to another user")

    @property
    def progress(self) -> Refusing:
        return self

    def receive(self, message: messages.ProgressMessage, reader: int | None, pid: int) -> dict[str, Any]:
        assert reader == NOBODY
        assert message.units is None or 0 <= message.units <= 1e15
        assert message.units is not None or isinstance(message.steps, dict)
        assert 1 <= len(message.process) <= 64
        raise ForbiddenError("progress: job belongs to another user")


async def work(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


SERVER = AgentServer(Refusing(), work)  # type: ignore[arg-type]
LOOP = asyncio.new_event_loop()


def expect_short(error: EnergyError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < MOST_CHARACTERS, str(error)


def try_messages(data: bytes) -> None:
    try:
        message = messages.parse(data)
        messages.operation(message, ("begin", "status"))
    except EnergyError as error:
        expect_short(error)
        return
    for check in CHECKS:
        try:
            check(message)
        except EnergyError as error:
            expect_short(error)


def try_server(data: bytes) -> None:
    answer = LOOP.run_until_complete(SERVER.respond(data, NOBODY))
    assert answer == {"ok": True, "jobs": []} or answer["code"] in (2, 5), answer
    line = json.dumps(answer)
    assert len(line) < MOST_CHARACTERS
    assert "\n" not in line


def try_hook_environment(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "n1"}
    while provider.remaining_bytes():
        name = NAMES[provider.ConsumeIntInRange(0, len(NAMES) - 1)]
        env[name] = provider.ConsumeUnicode(provider.ConsumeIntInRange(0, 60))
    try:
        context = job_context(env)
    except EnergyError as error:
        expect_short(error)
        return
    assert 0 <= context.job_id < 10**10
    assert context.gpus is None or len(context.gpus) <= 2048
    try:
        request = validate_flags(context.flags, CONFIG, context.user, context.partition)
    except EnergyError as error:
        expect_short(error)
        return
    for watts, bounds in (
        (request.cap_watts, CONFIG.bounds.cap_watts),
        (request.gpu_cap_watts, CONFIG.bounds.gpu_cap_watts),
    ):
        assert watts is None or bounds[0] <= watts <= bounds[1]


SEEDS = (
    b'{"op":"status"}\n',
    b'{"op":"energy","job_id":5,"fresh":true}',
    b'{"op":"progress","job_id":5,"process":"0.3.99.ab","units":12.5,"total":100,"time_s":7}',
    b'{"op":"progress","job_id":5,"process":"script.0","add":1}',
    b'{"op":"progress","job_id":5,"process":"script.0","steps":{"pid":7,"phases":{}}}',
    b'{"op":"set","job_id":5,"cap_watts":1e3,"gpu_cap_watts":null}',
    b'{"op":"step","event":"start","job_id":5,"step":"batch","pid":1,"cpus":"0-3"}',
    b'{"op":"begin","env":{"SLURM_JOB_ID":"5","SLURM_JOB_UID":"0","SPANK_ENERGY_POLICY":"cap"}}',
    b'{"op":"end","env":{"SLURM_JOB_ID":"5"},"uid":0,"op":"status"}',
    b'{"op":["\\ud800",NaN,-Infinity,1e999,123456789012345678901234567890],"job_id":{"a":[[[]]]}}',
)
WORDS = (
    "op",
    "status",
    "progress",
    "process",
    "units",
    "add",
    "energy",
    "begin",
    "set",
    "step",
    "env",
    "job_id",
    "fresh",
    "cap_watts",
    "event",
    "start",
)
WORDS += (
    "true",
    "null",
    "NaN",
    "Infinity",
    "1e999",
    "[[[[",
    '{\\"',
    "\\x00",
    "\\xff",
    "4294967296",
    "-1",
    "edp",
    "kW",
)

TARGETS = {"messages": try_messages, "hook_environment": try_hook_environment, "server": try_server}


def main() -> int:
    target, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="senergy-fuzz-") as folder:
        corpus, words = Path(folder) / "corpus", Path(folder) / "words"
        corpus.mkdir()
        for number, seed in enumerate(SEEDS):
            (corpus / str(number)).write_bytes(seed)
        words.write_text("".join(f'"{word}"\n' for word in WORDS))
        child = os.fork()  # libFuzzer ends its process itself
        if child == 0:
            places = [f"-dict={words}", f"-artifact_prefix={folder}/", str(corpus)]
            atheris.Setup([sys.argv[0], *options, *places], TARGETS[target])
            atheris.Fuzz()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


sys.exit(main())
