"""Scanner of Lua source text. Yields tokens with their positions, and skips comments.

All functions are pure.

The scanner supports Lua 5.1 to 5.4 as far as necessary to find the end of a script: names, keywords, strings
and symbols.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_SPACE: Final = re.compile(r"\s+")
_LONG: Final = re.compile(r"\[(=*)\[")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(r"\.?[0-9](?:[eEpP][+-]|[0-9A-Za-z_.])*")
_SHORT_STRING: Final = re.compile(r"(['\"])(?:\\.|(?!\1)[^\\\n])*\1", re.DOTALL)
LUA_KEYWORDS: Final = frozenset(
    {
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "goto",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
    }
)
_OPENING: Final = frozenset(("function", "do", "if", "repeat"))
_CLOSING: Final = frozenset(("end", "until"))


class LuaToken(NamedTuple):
    """A token of a Lua script.

    Attributes:
        start: offset in the text.
        text: the text of the token.
        is_name: whether the token is a name or a keyword.
        depth: number of blocks, and of open parentheses and braces, around the token.
    """

    start: int
    text: str
    is_name: bool
    depth: int


class LuaSyntaxError(ValueError):
    """The text is not a complete Lua script."""


def lua_tokens(text: str) -> Iterator[LuaToken]:
    """Yield the tokens of a script.

    Raises:
        LuaSyntaxError: a string, comment or block has no end, or a block has an end without a beginning.
    """
    at = text.find("\n") if text.startswith("#") else 0  # Lua skips a first line that begins with #
    at = len(text) if at < 0 else at
    depth = 0
    while at < len(text):
        end = _skipped(text, at)
        if end > at:
            at = end
            continue
        end = _token_end(text, at)
        token = text[at:end]
        is_name = _NAME.fullmatch(token) is not None
        if token in ("(", "{") or (is_name and token in _OPENING):
            yield LuaToken(at, token, is_name, depth)
            depth += 1
        elif token in (")", "}") or (is_name and token in _CLOSING):
            depth -= 1
            if depth < 0:
                raise LuaSyntaxError(f"'{token}' without a beginning")
            yield LuaToken(at, token, is_name, depth)
        else:
            yield LuaToken(at, token, is_name, depth)
        at = end
    if depth:
        raise LuaSyntaxError("a block does not end")


def _skipped(text: str, at: int) -> int:
    """Return the offset of the next token in a Lua text.

    If there are blanks or a comment at the given offset, the function returns the offset after them.
    Otherwise it returns the given offset.
    """
    if match := _SPACE.match(text, at):
        return match.end()
    if not text.startswith("--", at):
        return at
    if _LONG.match(text, at + 2):
        return _long_end(text, at + 2)
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _token_end(text: str, at: int) -> int:
    for pattern in (_NAME, _NUMBER):
        if match := pattern.match(text, at):
            return match.end()
    if text[at] in "'\"":
        if match := _SHORT_STRING.match(text, at):
            return match.end()
        raise LuaSyntaxError("a string does not end")
    if _LONG.match(text, at):
        return _long_end(text, at)
    return at + 1


def _long_end(text: str, at: int) -> int:
    match = _LONG.match(text, at)
    assert match is not None
    end = text.find(f"]{match[1]}]", match.end())
    if end < 0:
        raise LuaSyntaxError("a long string or comment does not end")
    return end + len(match[1]) + 2
