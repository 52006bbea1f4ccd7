"""Compilation of functions with Numba, cached on disk where a directory for that can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return a function that Numba compiles at its first call.

    The machine code is cached beside the source or in the home directory. Users who can write neither, such
    as accounts of services, wait for the compilation in each process.
    """
    try:
        return cast(Function, numba.njit(cache=True)(function))
    except RuntimeError:  # Numba: no locator available
        return cast(Function, numba.njit(function))
