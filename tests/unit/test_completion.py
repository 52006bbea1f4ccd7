"""Tests of the completion of commands, options and values in real interactive shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from slurm_energy.cli import completion
from slurm_energy.cli.completion_values import ValueSource, source_of
from slurm_energy.reports.time_spec import parse_time

pytest.importorskip("shtab", reason="shtab is not installed (extra docs)")

_DEADLINE_S = 120.0
_COMPLETED = {
    "senergy ac": "acct",
    "senergy acct --allocat": "--allocations",
    "senergy acct -o JobID,ConsumedEnergyR": "JobID,ConsumedEnergyRaw",
    "senergy sweep job.sh --policy powers": "powersave",
    "senergy sweep job.sh --policy=monitor,powers": "--policy=monitor,powersave",
    "senergy template render pyt": "pytorch-ddp",
    "senergy db rec": "recover",
    "senergy report cluster UtilizationByPa": "UtilizationByPartition",
    "senergy budget explain 417": "41771",
    "senergy predict --model resnet10": "resnet101",
    "senergy sweep job.sh --policy nigh": "nightly",
}
"""Line to type before the key Tab, and the word that must become complete."""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {shell: completion.script(shell) for shell in completion.SHELLS}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with a squeue that knows one job, and a policy file of the site."""
    tools = tmp_path / "bin"
    tools.mkdir()
    squeue = tools / "squeue"
    squeue.write_text("#!/bin/sh\necho 41771\n")
    squeue.chmod(0o755)
    (tmp_path / "policies").write_text("senergy-policies 1\npolicy nightly users=root\n")
    return tmp_path


class Terminal:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._main, other = pty.openpty()
        self._shell = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True
        )
        os.close(other)

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._main)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def complete_and_run(self, line: str) -> None:
        """Type a line, complete it with Tab, and run it.

        In zsh, the test binds Tab to completion followed by Enter, because zsh does not complete while
        further input waits.
        """
        self.type(f"{line}\t" if self._shell.args[0] == "zsh" else f"{line}\t\n")  # type: ignore[index]

    def read_until(self, mark: str) -> str:
        """Return the text that the shell prints until its output contains `mark`."""
        printed, deadline = "", time.monotonic() + _DEADLINE_S
        while mark not in printed:
            assert time.monotonic() < deadline, f"no {mark!r} in {printed!r}"
            if select.select([self._main], [], [], 0.5)[0]:
                printed += os.read(self._main, 65536).decode(errors="replace")
        return printed


def in_shell(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"no {shell} here")


@pytest.fixture(params=[pytest.param(shell, marks=in_shell(shell)) for shell in ("bash", "zsh")])
def terminal(request: pytest.FixtureRequest, scripts: dict[str, str], home: Path) -> Iterator[Terminal]:
    """An interactive shell with senergy's completion.

    In this shell, the command `senergy` only prints its arguments. The test can therefore read the completed
    command line.
    """
    shell = request.param
    text = scripts[shell].replace("/run/senergyctld/policies", str(home / "policies"))
    (home / "_senergy").write_text(text)
    (home / "job.sh").touch()
    setup = f"cd {home}; senergy() {{ printf '<%s>' \"$@\"; printf '[%s]\\n' end; }}\n"
    if shell == "bash":
        command = ["bash", "--norc", "--noprofile", "-i"]
        setup += f"source {home}/_senergy\n"
    else:
        command = ["zsh", "-f", "-i"]
        setup += f"fpath=({home} $fpath); autoload -Uz compinit; compinit -u -D\n"
        setup += "complete-and-run() { zle expand-or-complete; zle accept-line }\n"
        setup += "zle -N complete-and-run; bindkey '^I' complete-and-run\n"
    (home / "setup").write_text(f"{setup}PS1='[prompt]'\n")
    environment = {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb"}
    shell_terminal = Terminal(command, environment)
    try:
        shell_terminal.type(f". {home}/setup\n")
        shell_terminal.read_until("[prompt]")
        yield shell_terminal
    finally:
        shell_terminal.close()


@pytest.mark.slow
def test_bash_and_zsh_complete(terminal: Terminal) -> None:
    for line, word in _COMPLETED.items():
        terminal.complete_and_run(line)
        assert f"<{word}>" in terminal.read_until("[prompt]"), line


@pytest.mark.slow
@in_shell("fish")
def test_fish_completes(scripts: dict[str, str], home: Path) -> None:
    text = scripts["fish"].replace("/run/senergyctld/policies", str(home / "policies"))
    (home / "senergy.fish").write_text(text)
    ask = "".join(f"complete -C '{line}'; echo '[end]';" for line in _COMPLETED)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {home}/senergy.fish; {ask}"],
        env={"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout.split("[end]\n")
    for (line, word), candidates in zip(_COMPLETED.items(), printed, strict=False):
        assert word in [candidate.partition("\t")[0] for candidate in candidates.splitlines()], line
    assert done.stderr == ""


def test_commands_for_values_are_bounded() -> None:
    """A slow slurmctld must not hang the terminal while the shell completes a command line.

    Each command that looks up possible values of an option therefore runs with a time limit of one second.
    """
    root = completion.root_parser()
    commands = root._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    sources = {
        source
        for name, parser in commands.items()
        for action in parser._actions
        if isinstance(source := source_of(name, action), ValueSource)
    }
    slow = [source.command for source in sources if source.command and not source.command.startswith("sed ")]
    assert len(slow) >= 4
    assert [command for command in slow if not command.startswith("timeout 1 ")] == []


def test_offered_times_are_times() -> None:
    action = completion.root_parser()._subparsers._group_actions[0].choices["acct"]  # type: ignore[union-attr]
    source = source_of("acct", action._option_string_actions["-S"])
    assert isinstance(source, ValueSource)
    assert all(parse_time(word, datetime(2026, 11, 23), "-S") for word in source.words)


def test_the_shell_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main(["tcsh"]) == 2
    assert completion.main([]) == 2
    assert capsys.readouterr().out == ""
