"""Common functions of the policy registries: register a function by name, and report unknown names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Protocol, TypeVar

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion


class NamedPolicy(Protocol):
    """Interface of a registered policy."""

    @property
    def name(self) -> str:
        """Return the name of the policy in commands and configuration."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """The Python function that implements the scheduling policy."""
        ...


P = TypeVar("P", bound=NamedPolicy)


def add(known: MutableMapping[str, P], entry: P, kind: str) -> None:
    """Register a policy. The same function of a module may be registered again.

    Args:
        known: registered policies by name.
        entry: policy to register.
        kind: kind of policy, for error messages.

    Raises:
        UsageError: another function is already registered under this name.
    """
    existing = known.get(entry.name)
    if existing is not None and existing.function.__module__ != entry.function.__module__:
        where = existing.function.__module__
        raise UsageError(f"{kind} '{shown(entry.name)}' is registered already", f"in {where}")
    known[entry.name] = entry


def named(known: Mapping[str, P], name: str, kind: str) -> P:
    """Return the policy registered under a name.

    Raises:
        NotFoundError: there is no policy of this name. The message suggests the nearest names.
    """
    registered = known.get(name)
    if registered is None:
        candidates = sorted(known)
        hint = suggestion(name, candidates) or f"one of {', '.join(candidates)}"
        raise NotFoundError(f"{kind} '{shown(name)}' is not known", todo=hint)
    return registered


def summary(function: Callable[..., Any]) -> str:
    """Return the first line of a function's docstring; empty if the function has no docstring."""
    return (function.__doc__ or "").strip().partition("\n")[0]


def import_modules(package: ModuleType) -> None:
    """Import all modules of a package, so that their policies are registered."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
