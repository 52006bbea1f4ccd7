"""Compilation of functions with Numba.

Compiled functions are cached on disk if a cache directory is writable.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled_entry(*, counts_references: bool = False) -> Callable[[Function], Function]:
    """Return a decorator for functions that Python code calls. Numba compiles them at their first call.

    The machine code includes all called functions. The code is cached beside the source or in the home
    directory. Users who can write to neither directory, such as service accounts, wait for the compilation in
    each process.

    Args:
        counts_references: whether the function may create arrays.
    """

    def decorate(function: Function) -> Function:
        jit: Any = numba.njit
        try:
            cached = jit(cache=True, no_cfunc_wrapper=True, _nrt=counts_references)(function)
        except RuntimeError:  # Numba: no locator available
            return cast(Function, jit(no_cfunc_wrapper=True, _nrt=counts_references)(function))
        _use_caches_of_these_sources(cached)
        _ignore_caches_of_other_releases(cached)
        return cast(Function, cached)

    return decorate


def compiled(function: Function) -> Function:
    """Return a compiled function that only compiled functions call and that must not create arrays.

    A function without arrays of its own needs no reference counts. Reference counts take most of the time of
    short functions.
    """
    return _inner(function, counts_references=False)


def compiled_with_memory(function: Function) -> Function:
    """Return a function compiled with Numba that may create arrays.

    Only other compiled functions can call it.
    """
    return _inner(function, counts_references=True)


def _inner(function: Function, *, counts_references: bool) -> Function:
    """Compile a function with Numba for use inside other compiled functions.

    Each compiled function that calls it contains its code. The function cannot be called from Python,
    because it has no entry point for Python code. An entry point would contain a second copy of the code of
    all called functions. Such copies took a quarter of the compilation time.
    """
    jit: Any = numba.njit
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": counts_references}
    inner = jit(**options)(function)
    if hasattr(inner, "_compile_for_args"):  # not with NUMBA_DISABLE_JIT
        _refuse_python_callers(inner)
    return cast(Function, inner)


def _refuse_python_callers(function: Any) -> None:
    """Prevent calls of a compiled function from Python code.

    Without this, such a call would crash the interpreter. Now it raises a TypeError.
    """

    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError(f"{function.py_func.__name__}: only functions compiled by Numba call it")

    function._compile_for_args = refuse
    function._insert = lambda *_, **__: None  # Numba registers here what Python calls without compilation


def is_cached(function: Callable[..., Any]) -> bool:
    """Return whether the compiled machine code of a function is stored on disk.

    If so, the first call of the function is fast.
    """
    file: Any = getattr(getattr(function, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)
    return load is not None and bool(load())


def _use_caches_of_these_sources(function: Any) -> None:
    """Invalidate the cache of a function if any source of the simulator has changed.

    The machine code of a function contains the code of all functions that it calls. Numba compares only the
    source of the function itself. Numba would therefore use old code if only a called function has changed.
    """
    file: Any = getattr(getattr(function, "_cache", None), "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = sources_digest()


@functools.cache
def sources_digest() -> bytes:
    """Return the SHA-256 digest of all Python sources of the simulator."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes() + b"\0")
    return digest.digest()


def _ignore_caches_of_other_releases(function: Any) -> None:
    """Invalidate the cache of a function if the cache names classes that this release does not have.

    Numba loads the whole cache before it compares the source. Missing classes would raise an AttributeError.
    """
    file: Any = getattr(getattr(function, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)
    if load is None:
        return

    def load_if_readable() -> Any:
        try:
            return load()
        except Exception:  # whatever unpickling raises
            return {}

    file._load_index = load_if_readable
