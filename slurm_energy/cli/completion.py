"""Generator of shell completion: `python -m slurm_energy.cli.completion bash|zsh|fish`.

The library shtab generates the completion of commands and options from the parsers. The completion of values
comes from `completion_values`. The generated scripts start no Python. Some of the values come from a daemon.
A command prints these values, and is stopped after a second.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from slurm_energy.cli.completion_values import DIRECTORY, FILE, ValueSource, source_of
from slurm_energy.cli.reference import COMMANDS, parser_of
from slurm_energy.cli.subcommands import listing
from slurm_energy.command_line import colour
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, UnavailableError, install_extra

SHELLS: Final = ("bash", "zsh", "fish")
_BASH_LIST: Final = """
# Completes the last word of a list: $1 is the list so far, $2 the candidates.
_senergy_last_of_list() {
  local before=""
  [[ $1 == *,* ]] && before="${1%,*},"
  compgen -P "$before" -W "$2" -- "${1##*,}"
}
"""
_BASH_ENTRY: Final = """
# Joins "--option=value", which bash passes as three words, before the completion by shtab. No blank follows a
# word that may be continued.
_senergy() {
  local -a words=()
  local i at=0
  for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
    if [[ ${COMP_WORDS[i]} == "=" && ${words[*]: -1} == --* ]]; then
      ((i < COMP_CWORD)) && continue
      words+=("")
    else
      words+=("${COMP_WORDS[i]}")
    fi
    ((i == COMP_CWORD)) && at=$((${#words[@]} - 1))
  done
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$at
  _shtab_senergy "$@"
  case " ${COMP_WORDS[1]} ${COMP_WORDS[at - 1]} " in
  LIST_OPTIONS) compopt -o nospace 2>/dev/null ;;
  esac
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o bashdefault -F _senergy senergy
"""


def root_parser() -> CommandParser:
    """Return one parser of all commands. Each option knows the source of its completions."""
    root = CommandParser(prog="senergy", description="energy of Slurm jobs")
    root.add_argument("-V", "--version", action="store_true", help="print the release")
    colour.add_color_option(root)
    commands = root.add_subparsers(metavar="COMMAND")
    helps = listing()
    for name in COMMANDS:
        parser = parser_of(name)
        commands.choices[name] = parser
        commands._choices_actions.append(commands._ChoicesPseudoAction(name, (), helps.get(name, "")))
        _add_sources(name, parser)
    return root


def _add_sources(command: str, parser: argparse.ArgumentParser) -> None:
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _add_sources(command, child)
            continue
        if action.nargs == 0 or (action.choices and action.metavar is None):
            continue
        source = source_of(command, action)
        if isinstance(source, ValueSource):
            action.complete = _functions(source)  # type: ignore[attr-defined]
        elif source in (FILE, DIRECTORY) and not action.choices:
            action.complete = shtab.FILE if source == FILE else shtab.DIRECTORY  # type: ignore[attr-defined]


def _functions(source: ValueSource) -> dict[str, Any]:
    """Return the shell functions that complete a word of the command line, for each shell.

    The words come from `source`, for example from a command that lists names. The result maps the name of
    each shell to its function, in the form that the library shtab requires.
    """
    fish = f"(__fish_complete_list , {source.name})" if source.is_list else f"({source.name})"
    preamble = {"bash": _bash(source), "zsh": _zsh(source), "fish": _fish(source)}
    return {"bash": source.name, "zsh": source.name, "fish": fish, "preamble": preamble}


def _bash(source: ValueSource) -> str:
    words = " ".join(source.words)
    if source.command:
        words += f" $({source.command})"
    complete = '_senergy_last_of_list "$1"' if source.is_list else 'compgen -W "$words" -- "$1"'
    complete += ' "$words"' if source.is_list else ""
    return f'{source.name}() {{\n  local words="{words.strip()}"\n  {complete}\n}}\n'


def _zsh(source: ValueSource) -> str:
    words = " ".join(map(shlex.quote, source.words))
    more = f'\n  words+=(${{(f)"$({source.command})"}})' if source.command else ""
    complete = "_sequence compadd -a words" if source.is_list else "compadd -a words"
    return f"{source.name}() {{\n  local -aU words=({words}){more}\n  {complete}\n}}\n"


def _fish(source: ValueSource) -> str:
    lines = [f"function {source.name}"]
    if source.words:
        lines.append(f"  printf '%s\\n' {' '.join(map(shlex.quote, source.words))}")
    if source.command:
        lines.append(f"  sh -c {shlex.quote(source.command)}")
    return "\n".join([*lines, "end", ""])


def script(shell: str) -> str:
    """Return the completion script for a shell of `SHELLS`.

    Raises:
        UnavailableError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise UnavailableError("completion", "shtab is not installed", install_extra("docs")) from None
    root = root_parser()
    text: str = shtab.complete(root, shell, preamble=_BASH_LIST if shell == "bash" else "")
    if shell == "bash":
        options = "|".join(f'" {words} "' for words in _list_options(root))
        own = _BASH_ENTRY.replace("LIST_OPTIONS", options)
        return text.replace("complete -o bashdefault -F _shtab_senergy senergy", own.strip())
    return _corrected_zsh(text) if shell == "zsh" else text


def _list_options(root: CommandParser) -> Iterator[str]:
    """Yield `COMMAND OPTION` for each option of `senergy` that takes a list, for shell completion."""
    for name, parser in root._subparsers._group_actions[0].choices.items():  # type: ignore[union-attr]
        for action in parser._actions:
            source = source_of(name, action)
            if isinstance(source, ValueSource) and source.is_list:
                yield from (f"{name} {option}" for option in action.option_strings)


def _corrected_zsh(text: str) -> str:
    """Return a zsh completion script of the library shtab with two corrections.

    In the corrected script, repeated arguments and `--option=value` complete.
    """
    lines = []
    for line in text.splitlines():
        line = re.sub(r'^(\s+)"\(\*\)::?', r'\1"*:', line)
        if re.match(r'\s+("-|\{-|"\*-|"\*"\{)', line) and re.search(r"(?<!\\)\]:", line):
            head, bracket, rest = line.partition("[")
            head = re.sub(r"(--[\w-]+)", r"\1=", head)
            line = re.sub(r"(?<![\w-])(-\w)(?![\w-])", r"\1+", head) + bracket + rest
        lines.append(line)
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script for the shell that the argument names."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) != 1 or words[0] not in SHELLS:
        print(f"usage: python -m slurm_energy.cli.completion {'|'.join(SHELLS)}", file=sys.stderr)
        return EXIT_USAGE
    try:
        sys.stdout.write(script(words[0]))
    except UnavailableError as error:
        print(f"senergy: error: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
