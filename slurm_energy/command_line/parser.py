"""Argument parser of all commands, which reports each error as one line with a suggestion."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slurm_energy.command_line import colour
from slurm_energy.command_line.help_page import HelpFormatter
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.safe_text import encodable
from slurm_energy.spelling import suggestion

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

SLURM_ONLY = {
    "-M": "a controller serves one cluster: select another one's configuration with --config",
    "--clusters": "a controller serves one cluster: select another one's configuration with --config",
    "-L": "a controller serves one cluster: select another one's configuration with --config",
    "--allclusters": "a controller serves one cluster: select another one's configuration with --config",
    "--federation": "a controller serves one cluster: select another one's configuration with --config",
}
"""Options of Slurm's commands that have no meaning here, and what to do instead."""


class CommandParser(argparse.ArgumentParser):
    """Argument parser that raises UsageError instead of printing the usage and exiting.

    Attributes:
        dashed_values: options whose value may begin with a dash, such as `-S -y` of sprio.
        rest_dest: attribute of the namespace that receives the list of all arguments after the first `--`; an
            empty value means that argparse treats `--` as usual.
        intermixed: whether options may stand between positional arguments, as in Slurm's commands.
    """

    dashed_values: tuple[str, ...] = ()
    rest_dest: str = ""
    intermixed: bool = False

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments, including option values that begin with a dash."""
        words = list(sys.argv[1:] if args is None else args)
        rest: list[str] = []
        if self.rest_dest and "--" in words:
            at = words.index("--")
            words, rest = words[:at], words[at + 1 :]
        parsed, extra = super().parse_known_args(list(self._joined(words)), namespace)
        if self.rest_dest:
            setattr(parsed, self.rest_dest, rest)
        return parsed, extra

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse all arguments.

        Raises:
            UsageError: an argument is wrong, missing or unknown.
        """
        if self.intermixed:
            parsed, extra = self.parse_known_intermixed_args(args, namespace)
            assert parsed is not None
        else:
            parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            raise self._unknown(extra[0])
        return parsed

    def complete_actions(self) -> None:
        """Add the option --color to this command and its actions. Complete the help of each action.

        The help of an action, such as `config check`, gets those examples of `config` that use `check`.
        """
        colour.add_color_option(self)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, child in action.choices.items():
                    colour.add_color_option(child)
                    if child.epilog is None:
                        child.epilog = _examples_of(f"{self.prog} {name}", self.epilog or "")

    def error(self, message: str) -> Any:
        """Raise a UsageError with the message that argparse would print."""
        raise UsageError(self.prog, message.removeprefix("argument "), f"see {self.prog} --help")

    def _joined(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the arguments.

        An option value that begins with a dash is joined to its option.
        """
        rest = iter(words)
        for word in rest:
            value = next(rest, None) if word in self.dashed_values else None
            if value is None:
                yield word
            elif value.startswith("-") and not value.startswith("--"):
                yield f"{word}={value}" if word.startswith("--") else word + value
            else:
                yield from (word, value)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = "/".join(action.option_strings) or self.prog
        choices = [str(choice) for choice in action.choices]
        message = f"{name}: '{shown(str(value))}' is not one of {', '.join(choices)}"
        raise UsageError(message, todo=suggestion(str(value), choices) or f"see {self.prog} --help")

    def _unknown(self, word: str) -> UsageError:
        """Return the error for a command-line argument that the command does not accept."""
        option = word.partition("=")[0]
        listing = f"see {self.prog} --help"
        if not option.startswith("-"):
            return UsageError(self.prog, f"unexpected argument '{shown(word)}'", listing)
        name = option if option.startswith("--") else option[:2]  # -Mlab is -M lab
        if name in SLURM_ONLY:
            has_clusters = name == "-M" and "--clusters" in self._option_string_actions
            todo = "write --clusters" if has_clusters else SLURM_ONLY[name]
            return UsageError(f"{self.prog}: {name}", "is not an option here", todo)
        hint = suggestion(option, self._long_options()) if option.startswith("--") else ""
        return UsageError(self.prog, f"unknown option '{shown(option)}'", hint or listing)

    def _long_options(self) -> set[str]:
        names = {name for name in self._option_string_actions if name.startswith("--")}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    names |= child._long_options()
        return names

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        stream = file or sys.stderr
        if colour.is_enabled(stream):
            message = colour.with_bold_headings(message)
        stream.write(encodable(message, getattr(stream, "encoding", None)))


def _examples_of(command: str, epilog: str) -> str | None:
    """Return the examples in an epilog that begin with `command`; None if there are none."""
    lines = [line for line in epilog.splitlines() if line.startswith(f"  {command}")]
    return "\n".join(["examples:", *lines]) if lines else None
