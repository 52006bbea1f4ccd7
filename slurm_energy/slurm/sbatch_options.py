"""Syntax of sbatch's options: names, abbreviations, arguments, and the words of an #SBATCH line.

The meaning of the options is in `batch_script`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


_WITH_VALUE: Final = _names(
    "account acctg-freq array batch bb bbf begin chdir cluster clusters cluster-constraint comment",
    "constraint container container-id container-type context core-spec cores-per-socket cpu-freq",
    "cpus-per-gpu cpus-per-task deadline",
    "delay-boot dependency distribution error exclude export export-file extra extra-node-info gid",
    "gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input",
    "job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu",
    "mem-per-gpu mem-update mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu",
    "ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition power prefer priority",
    "profile qos reservation resources segment signal sockets-per-node switches tasks-per-node thread-spec",
    "threads-per-core time time-min tmp",
    "tres-bind tres-per-task uid wait-all-nodes wckey wrap energy-policy energy-cap energy-gpu-cap",
    "energy-slowdown energy-tuning energy-cpu-freq energy-gpu-clock energy-power-profile",
    "energy-model energy-tag energy-alternatives energy-slack energy-checkpointable energy-signals",
)
_MAYBE_VALUE: Final = _names("exclusive get-user-env nice oom-kill-step propagate resv-ports")
_ALONE: Final = _names(
    "contiguous help hold ignore-pbs no-kill no-requeue overcommit oversubscribe parsable quiet reboot",
    "requeue spread-job spread-segments stepmgr test-only usage use-min-nodes verbose version wait",
)
LONG: Final = _WITH_VALUE | _MAYBE_VALUE | _ALONE
_SECOND_NAMES: Final = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}
_SHORT: Final = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint",
    "c": "cpus-per-task", "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus",
    "i": "input", "J": "job-name", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "S": "core-spec", "t": "time",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
_SHORT_ALONE: Final = {
    "h": "help", "H": "hold", "k": "no-kill", "O": "overcommit", "Q": "quiet", "s": "oversubscribe",
    "u": "usage", "v": "verbose", "V": "version", "W": "wait",
}  # fmt: skip


def words(line: str) -> list[str]:
    """Split the text after #SBATCH into words as sbatch does.

    Quotes protect spaces. A backslash protects any other character. `#` begins a comment, even inside a word.
    A backslash at the end of a line is ignored, because sbatch does not join lines. tests/cluster/ compares
    this function with sbatch 22.05.

    Raises:
        UsageError: a quote is not closed.
    """
    finished: list[str] = []
    word: list[str] | None = None
    quote, escaped = "", False
    for letter in line:
        if escaped and (quote or not letter.isspace()):
            word, escaped = [*(word or []), letter], False
        elif letter == "\\":
            word, escaped = word or [], True
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word = [*(word or []), letter]
        elif letter in "\"'":
            word, quote = word or [], letter
        elif letter.isspace():
            if word is not None:
                finished.append("".join(word))
            word, escaped = None, False  # a backslash does not protect a space
        elif letter == "#":  # also inside a word
            break
        else:
            word = [*(word or []), letter]
    if quote:
        raise UsageError(f"a quote {quote} without its end")
    return [*finished, "".join(word)] if word is not None else finished


def options(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the long name and the value of each sbatch option, split as getopt splits them.

    The value is None if the option has no value. An option with a name that sbatch does not know is yielded
    unchanged. Its value is the text after `=`, if there is one.

    Args:
        arguments: words of a command line or of an #SBATCH line.

    Raises:
        UsageError: a value is missing, an abbreviation is ambiguous, or a word does not begin with a dash.
    """
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word:
            continue
        if word in ("-", "--") or not word.startswith("-"):
            raise UsageError(f"'{shown(word)}' is no option", todo="write --NAME=VALUE")
        if word.startswith("--"):
            yield _long(word[2:], rest)
        else:
            yield from _short(word[1:], rest)


def _long(text: str, rest: list[str]) -> tuple[str, str | None]:
    given, equals, value = text.partition("=")
    name = _full_name(given)
    if equals:
        return name, value
    if name in _WITH_VALUE:
        return name, _next(f"--{name}", rest)
    return name, None


def _full_name(given: str) -> str:
    """Return the name of an option that may be abbreviated.

    If the option has two names, the result is the usual name.
    """
    fitting = sorted(name for name in LONG if name.startswith(given)) if given else []
    if given not in LONG and len(fitting) > 1:
        raise UsageError(f"--{shown(given)}", "fits several options", f"one of {', '.join(fitting[:5])}")
    name = given if given in LONG or not fitting else fitting[0]
    return _SECOND_NAMES.get(name, name)


def _short(letters: str, rest: list[str]) -> Iterator[tuple[str, str | None]]:
    for position, letter in enumerate(letters):
        if letter in _SHORT:
            value = letters[position + 1 :] or _next(f"-{letter}", rest)
            yield _SHORT[letter], value
            return
        yield _SHORT_ALONE.get(letter, f"-{letter}"), None


def _next(name: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(name, "needs a value")
    return rest.pop(0)
