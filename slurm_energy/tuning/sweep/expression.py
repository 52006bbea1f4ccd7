"""Evaluation of arithmetic expressions in sweep presets.

An example of an expression is `cores * threads_per_core // processes`. The module has only pure functions.

An expression may come from a file of a user. Therefore only these forms of Python's syntax are evaluated:
integers, texts, names, arithmetic, comparisons, `and`, `or`, `not`, `A if B else C`, `min(...)` and
`max(...)`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion_or_list

Value = int | str | bool | None
"""Value of an expression. None: nothing is set."""

_MAX_LENGTH: Final = 200
_MAX_NUMBER: Final = 10**12
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {"min": min, "max": max}
_NONE: Final = "none"


def evaluate(text: str, names: Mapping[str, Value]) -> Value:
    """Return the value of an expression.

    Args:
        text: the expression. The name `none` has the value None.
        names: values of the names that the expression may use.

    Raises:
        UsageError: the text is not an expression, uses an unknown name, divides by 0, or has a wrong type.
    """
    what = f"expression '{shown(text)}'"
    if len(text) > _MAX_LENGTH:
        raise UsageError(what, f"is longer than {_MAX_LENGTH} characters")
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body, names)
    except UsageError as error:
        raise UsageError(what, str(error)) from None
    except ZeroDivisionError:
        raise UsageError(what, "divides by 0") from None
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        raise UsageError(what, "is not valid", "write integers, names, + - * // % and comparisons") from None


def _evaluate(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=bool() | int() | str() as constant):
            return _bounded(constant)
        case ast.Name(id=name):
            return _named(name, names)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _ARITHMETIC:
            numbers = [_number(_evaluate(side, names)) for side in (left, right)]
            return _bounded(_ARITHMETIC[type(operation)](*numbers))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, names)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluate(value, names) for value in values)
        case ast.BoolOp(values=values):
            return any(_evaluate(value, names) for value in values)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluate(body if _evaluate(test, names) else other, names)
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if type(operation) in _COMPARISONS:
            return _COMPARISONS[type(operation)](_evaluate(left, names), _evaluate(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_number(_evaluate(item, names)) for item in arguments)))
    raise ValueError


def _named(name: str, names: Mapping[str, Value]) -> Value:
    if name == _NONE:
        return None
    if name not in names:
        raise UsageError(f"name '{shown(name)}' is unknown", todo=suggestion_or_list(name, list(names)))
    return names[name]


def _number(value: Value) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _bounded(value: Any) -> Value:
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise ValueError
    result: Value = value
    return result
