"""Wrappers that run each call of a function inside a context manager.

Objects that are both a context manager and a decorator use these wrappers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def inside(function: _Function, context: Callable[[], AbstractContextManager[Any]]) -> _Function:
    """Return a wrapper of `function` that runs each call inside a new context.

    The context of a coroutine or a generator lasts until the end of the coroutine or generator.

    Args:
        function: function to wrap.
        context: function that returns the context of one call.
    """
    wrapper: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with context():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with context():
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

    return wrapper  # type: ignore[no-any-return]
