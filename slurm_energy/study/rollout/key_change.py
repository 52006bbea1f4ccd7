"""Changes of single keys in the text of a TOML file. All other lines stay as they are.

All functions are pure.

Single statements of the text are edited, so that the site's comments, order and spelling remain. The result
is parsed and compared with the intended values. A change that would alter any other value is refused.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.config.schema_document import toml
from slurm_energy.errors import ConfigError
from slurm_energy.setup.conf_text import line_break, raw_lines

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_KEY_PART: Final = re.compile(r"\s*(?:(?P<bare>[A-Za-z0-9_-]+)|(?P<quoted>\"(?:[^\"\\]|\\.)*\"|'[^']*'))\s*")
_TABLE: Final = re.compile(r"\s*\[(?!\[)(?P<name>.*)\]\s*(?:#.*)?$")
_LIST_TABLE: Final = re.compile(r"\s*\[\[")


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A new value of one key of the configuration.

    Attributes:
        path: section, key and inner keys, such as `("tuning", "partition", "gpu")`.
        value: new value: a list, number, text, Boolean or dict.
        is_list_table: whether the value is a dict that becomes a new table `[[path]]` at the end of the file.
    """

    path: tuple[str, ...]
    value: Any
    is_list_table: bool = False

    @property
    def label(self) -> str:
        """The change as one line of TOML. The line contains the full dotted path of the key."""
        name = ".".join(map(_key_text, self.path))
        return f"[[{name}]] {toml(self.value)}" if self.is_list_table else f"{name} = {toml(self.value)}"


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of a TOML text: a key with its value, or the header of a table.

    Attributes:
        start: offset of the first line.
        end: offset after the last line.
        path: path of the key or of the table.
        is_header: whether the statement is a header.
        in_list: whether the statement belongs to a table in a list of tables `[[...]]`.
    """

    start: int
    end: int
    path: tuple[str, ...]
    is_header: bool = False
    in_list: bool = False


def changed_text(text: str, changes: Sequence[KeyChange], remark: str = "") -> str:
    """Return the text of a TOML file with changed keys.

    Args:
        text: text of the TOML file.
        changes: changes of keys. A key that already has the new value is left alone.
        remark: comment at the end of each written line; an empty value means no comment.

    Raises:
        ConfigError: the text is not TOML, or its form does not permit the change of a key. The message
            names the key.
    """
    expected = _parsed(text)
    for change in changes:
        before = copy.deepcopy(expected)
        _put(expected, change)
        if expected == before:
            continue
        text = _with_change(text, change, remark)
        if _parsed(text, change) != expected:
            raise _refused(change)
    return text


def undone_text(
    text: str, changes: Sequence[KeyChange], original: str, remark: str
) -> tuple[str, list[KeyChange]]:
    """Return a text in which changes are undone. Other keys keep their present values.

    Args:
        text: the present text.
        changes: the changes that were made.
        original: the text before these changes.
        remark: the comment that marks the changed lines.

    Returns:
        The text, and the changes that were not undone because their keys have got another value in the
            meantime. These keys are left alone.

    Raises:
        ConfigError: the present text is not TOML.
    """
    lost = []
    for change in reversed(changes):
        if change.is_list_table:
            tables = value_at(text, change.path) or []
            if change.value not in tables:
                lost.append(change)
                continue
            text = _without_list_table(text, change, remark)
        elif value_at(original, change.path) == change.value:
            continue  # the site's own value, which was left alone
        elif value_at(text, change.path) != change.value:
            lost.append(change)
        else:
            text = _restored(text, change, original, remark)
    return text, lost


def _restored(text: str, change: KeyChange, original: str, remark: str) -> str:
    """Return the text of energy.toml after one changed key got back its original line.

    If the original text has no such key, the key is removed.
    """
    statement, old = _statement_of(text, change.path), _statement_of(original, change.path)
    if statement is None:
        return text
    if old is not None:
        line = original[old.start : old.end].rstrip("\r\n")
        if len(statement.path) < len(
            change.path
        ):  # an inline table, of which the site may have changed other keys
            value, depth = _parsed_value(text, statement), len(statement.path)
            _put(value, KeyChange(change.path[depth:], value_at(original, change.path)))
            if value_at(original, change.path) is None:
                _remove(value, change.path[depth:])
            if value != _parsed_value(original, old):
                return _replaced(text, statement, value, "")
        ending = text[statement.start : statement.end][
            len(text[statement.start : statement.end].rstrip("\r\n")) :
        ]
        return text[: statement.start] + line + ending + text[statement.end :]
    text = text[: statement.start] + text[statement.end :]
    return _without_own_header(text, change.path[:1], remark)


def _remove(data: dict[str, Any], path: Sequence[str]) -> None:
    for name in path[:-1]:
        data = data[name]
    del data[path[-1]]


def _statement_of(text: str, path: tuple[str, ...]) -> _Statement | None:
    """Return the TOML statement that sets a configuration key; None if no statement sets the key."""
    for statement in _statements(text):
        if (
            not statement.is_header
            and not statement.in_list
            and statement.path == path[: len(statement.path)]
        ):
            return statement
    return None


def _without_own_header(text: str, path: tuple[str, ...], remark: str) -> str:
    """Return the text of energy.toml without a table header that a change has added.

    The header is removed only if its table is empty now.
    """
    statements = list(_statements(text))
    for place, statement in enumerate(statements):
        line = text[statement.start : statement.end]
        is_last = place + 1 == len(statements) or statements[place + 1].is_header
        if statement.is_header and statement.path == path and is_last and _comment_of_header(line) == remark:
            return _cut(text, statement.start, statement.end)
    return text


def _without_list_table(text: str, change: KeyChange, remark: str) -> str:
    """Return the text of a TOML file without the `[[path]]` table that a change had added.

    The table is recognised by the value and the comment of the change. If several tables match, the last one
    is removed. If no table matches, the text is returned unchanged.
    """
    statements = list(_statements(text))
    starts = [i for i, one in enumerate(statements) if one.is_header] + [len(statements)]
    for first, end in reversed(list(itertools.pairwise(starts))):
        header = statements[first]
        body = text[header.start : statements[end - 1].end]
        if header.path != change.path or not header.in_list:
            continue
        value: Any = _parsed(body)
        for name in change.path:
            value = value[name]
        if value == [change.value] and _comment_of_header(text[header.start : header.end]) == remark:
            return _cut(text, header.start, statements[end - 1].end)
    return text


def _comment_of_header(line: str) -> str:
    return line.rpartition("]")[2].strip().removeprefix("#").strip()


def _cut(text: str, start: int, end: int) -> str:
    """Return the text of a TOML file without a table that was appended earlier.

    The blank line before the table is removed, too.
    """
    head = text[:start]
    for ending in ("\r\n", "\n"):
        if head.endswith(ending + ending):
            head = head.removesuffix(ending)
            break
    return head + text[end:]


def value_at(text: str, path: Sequence[str]) -> Any:
    """Return the value of a key in the text of a TOML file; None if the text lacks the key."""
    value: Any = _parsed(text)
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def _parsed(text: str, change: KeyChange | None = None) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if change is not None:
            raise _refused(change) from None
        raise ConfigError("energy.toml", f"not TOML: {error}", "senergy config check") from None


def _refused(change: KeyChange) -> ConfigError:
    return ConfigError(
        "energy.toml", "its form does not permit a change of one key", f"write: {change.label}"
    )


def _put(data: dict[str, Any], change: KeyChange) -> None:
    """Set a key in parsed TOML to its new value."""
    inner = data
    for name in change.path[:-1]:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise _refused(change)
    if change.is_list_table:
        inner.setdefault(change.path[-1], []).append(dict(change.value))
    else:
        inner[change.path[-1]] = change.value


def _with_change(text: str, change: KeyChange, remark: str) -> str:
    if change.is_list_table:
        return _appended(text, f"[[{'.'.join(map(_key_text, change.path))}]]", change.value, remark)
    statements = list(_statements(text))
    for statement in statements:
        if statement.is_header or statement.in_list:
            continue
        if statement.path == change.path:
            return _replaced(text, statement, change.value, remark)
        depth = len(statement.path)
        if statement.path == change.path[:depth]:
            value = _parsed_value(text, statement)
            if isinstance(value, dict):
                _put(value, KeyChange(change.path[depth:], change.value))
                return _replaced(text, statement, value, remark)
    return _inserted(text, statements, change, remark)


def _inserted(text: str, statements: Sequence[_Statement], change: KeyChange, remark: str) -> str:
    """Return the text with a new key.

    The key is inserted after the header of its table, or in a new table at the end.
    """
    for depth in range(len(change.path) - 1, 0, -1):
        for statement in statements:
            if statement.is_header and not statement.in_list and statement.path == change.path[:depth]:
                name = ".".join(map(_key_text, change.path[depth:]))
                head, tail = text[: statement.end], text[statement.end :]
                ending = line_break(text)
                head = head if head.endswith("\n") else head + ending
                return f"{head}{_line(name, change.value, remark)}{ending}{tail}"
    header = f"[{'.'.join(map(_key_text, change.path[:1]))}]"
    return _appended(text, header, {change.path[1:]: change.value}, remark)


def _appended(text: str, header: str, values: dict[Any, Any], remark: str) -> str:
    """Return a TOML text with a new table added at its end."""
    ending = line_break(text)
    lines = [header + (f"  # {remark}" if remark else "")]
    for name, value in values.items():
        parts = name if isinstance(name, tuple) else (name,)
        lines.append(_line(".".join(map(_key_text, parts)), value, remark))
    head = text if not text or text.endswith("\n") else text + ending
    gap = ending if head.strip() else ""
    return head + gap + "".join(line + ending for line in lines)


def _replaced(text: str, statement: _Statement, value: Any, remark: str) -> str:
    """Return the text of a TOML file in which one key has a new value.

    A comment after the old value is kept.
    """
    old = text[statement.start : statement.end]
    body = old.rstrip("\r\n")
    name = body[: _key_end(body)].rstrip()
    comment = _comment(body)
    line = f"{name} = {toml(value)}{f'  {comment}' if comment else ''}"
    if remark and not comment:
        line += f"  # {remark}"
    return text[: statement.start] + line + old[len(body) :] + text[statement.end :]


def _line(name: str, value: Any, remark: str) -> str:
    return f"{name} = {toml(value)}" + (f"  # {remark}" if remark else "")


def _comment(body: str) -> str:
    """Return the comment after the value of a statement; empty if the statement has no comment."""
    at = body.find("#", _key_end(body))
    while at >= 0:
        try:
            tomllib.loads(body[:at])
        except tomllib.TOMLDecodeError:
            at = body.find("#", at + 1)
        else:
            comment = body[at:]
            return comment if "\n" not in comment else ""
    return ""


def _statements(text: str) -> Iterator[_Statement]:
    """Yield the statements of a TOML text: headers, and keys with their values."""
    table: tuple[str, ...] = ()
    in_list, lists, start, at = False, set[tuple[str, ...]](), 0, 0
    for line in raw_lines(text):
        at += len(line)
        chunk = text[start:at]
        if start + len(line) == at and (not chunk.strip() or chunk.lstrip().startswith("#")):
            start = at
            continue
        if start + len(line) == at and (_LIST_TABLE.match(line) or _TABLE.match(line.rstrip("\r\n"))):
            is_list = _LIST_TABLE.match(line) is not None
            table = _header_path(line)
            if is_list:
                lists.add(table)
            in_list = any(table[: len(one)] == one for one in lists)
            yield _Statement(start, at, table, True, in_list)
            start = at
            continue
        try:
            tomllib.loads(chunk)
        except tomllib.TOMLDecodeError:
            continue  # the value goes on in the next line
        yield _Statement(start, at, table + _key_path(chunk), in_list=in_list)
        start = at


def _parsed_value(text: str, statement: _Statement) -> Any:
    chunk = text[statement.start : statement.end]
    value: Any = tomllib.loads(chunk)
    for name in _key_path(chunk):
        value = value[name]
    return value


def _header_path(line: str) -> tuple[str, ...]:
    return _parts(line.lstrip().lstrip("["), "]")[0]


def _key_path(chunk: str) -> tuple[str, ...]:
    return _parts(chunk, "=")[0]


def _key_end(chunk: str) -> int:
    """Return the offset of the equals sign after the key of a statement."""
    return _parts(chunk, "=")[1]


def _parts(text: str, end: str) -> tuple[tuple[str, ...], int]:
    """Return the parts of a dotted key, and the offset of the character `end` that ends the key."""
    parts, at = [], 0
    while (match := _KEY_PART.match(text, at)) is not None:
        quoted = match["quoted"]
        parts.append(match["bare"] if quoted is None else next(iter(tomllib.loads(f"{quoted} = 0"))))
        at = match.end()
        if text[at : at + 1] != ".":
            break
        at += 1
    return tuple(parts), text.index(end, at)


def _key_text(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml(name)
