"""Registry of scheduling policies by name.

A policy is one function in one file. A site can load its own policies from Python files.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling import named_policies
from slurm_energy.scheduling.policy_guard import Rank, guarded_rank
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, fault

_BUILT_IN = "slurm_energy.scheduling.rankings."
_KIND = "policy"


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy.

    Attributes:
        name: name in commands and configuration, lower case.
        function: the ranking function. `rank` checks its result.
        summary: first line of the ranking function's docstring.
        keeps_budget: whether the policy starts a job only if the predicted power stays within the cluster's
            budget.
        preempts: whether the policy may interrupt jobs without a deadline for jobs with one.
        weights: names of the weights that the ranking function reads; None if the function does not declare
            its weights.
        looks_ahead: whether the ranking function reads `Queue.capacity`.
    """

    name: str
    function: Rank
    summary: str
    keeps_budget: bool = False
    preempts: bool = False
    weights: frozenset[str] | None = None
    looks_ahead: bool = False

    def rank(self, queue: Queue, options: Options) -> Ranking:
        """Return the ranking of the pending jobs in a queue.

        Raises:
            UsageError: the ranking function failed or returned an invalid ranking. The message states the
                reason on one line.
        """
        if not self.built_in:
            return guarded_rank(self.name, self.function, queue, options)
        ranking = self.function(queue, options)
        if wrong := fault(ranking, queue):
            raise UsageError(f"policy '{self.name}'", wrong, "see Ranking in slurm_energy.scheduling")
        return ranking

    @property
    def built_in(self) -> bool:
        """Return whether the policy belongs to this package and is not a site's own policy."""
        return (getattr(self.function, "__module__", None) or "").startswith(_BUILT_IN)


_policies: dict[str, Policy] = {}


def register(
    name: str,
    *,
    keeps_budget: bool = False,
    preempts: bool = False,
    weights: Collection[str] | None = None,
    looks_ahead: bool = False,
) -> Callable[[Rank], Rank]:
    """Return a decorator that registers a ranking function as a policy.

    Args:
        name: name in commands and configuration.
        keeps_budget: whether the policy starts a job only if the predicted power stays within the budget.
        preempts: whether the policy may interrupt jobs without a deadline for jobs with one.
        weights: names of the weights that the function reads; None if the function does not declare its
            weights.
        looks_ahead: whether the function reads `Queue.capacity`.

    Raises:
        UsageError: another function is already registered under this name.
    """

    def decorate(rank: Rank) -> Rank:
        names = None if weights is None else frozenset(weights)
        summary = named_policies.summary(rank)
        entry = Policy(name, rank, summary, keeps_budget, preempts, names, looks_ahead)
        named_policies.add(_policies, entry, _KIND)
        return rank

    return decorate


def policy(name: str) -> Policy:
    """Return the scheduling policy registered under a name.

    Raises:
        NotFoundError: there is no policy of this name. The message suggests the nearest names.
    """
    _load_built_in()
    return named_policies.named(_policies, name, _KIND)


def names() -> list[str]:
    """Return the names of all registered scheduling policies, sorted."""
    _load_built_in()
    return sorted(_policies)


def check_weights(weights: Collection[str]) -> None:
    """Check that each of the given weights is used by at least one registered scheduling policy.

    If the site has loaded a policy of its own, every weight is accepted, because this policy may use any
    weight.

    Args:
        weights: names of weights.

    Raises:
        UsageError: no policy uses a weight. The message names the weight.
    """
    _load_built_in()
    site_policies = [entry for entry in _policies.values() if not entry.built_in]
    known = frozenset().union(*(entry.weights for entry in _policies.values() if entry.weights))
    unknown = sorted(set(weights) - known)
    if unknown and not site_policies:
        names = ", ".join(sorted(known))
        raise UsageError(f"weights: '{shown(unknown[0])}' belongs to no policy", todo=f"known: {names}")


def load_file(path: Path) -> list[str]:
    """Load a site's own policies by executing a Python file that registers them.

    Returns:
        Names of the registered policies.

    Raises:
        UsageError: the file cannot be read or executed, or registers no policy.
    """
    _load_built_in()
    before = dict(_policies)
    spec = importlib.util.spec_from_file_location(f"senergy_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except (Exception, SystemExit) as error:  # a site's file may raise anything
        line = _line(error, path)
        raise UsageError(f"{path}{line}", f"{type(error).__name__}: {shown(str(error), 120)}") from None
    new = [name for name, entry in _policies.items() if before.get(name) is not entry]
    if not new:
        raise UsageError(f"{path}: registers no policy", todo="decorate a function with @register('name')")
    return new


def _line(error: BaseException, path: Path) -> str:
    """Return `:LINE` with the line number in `path` that raised an error; empty if the line is unknown."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while line is None and trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            return f":{trace.tb_lineno}"
        trace = trace.tb_next
    return f":{line}" if line is not None else ""


def _load_built_in() -> None:
    from slurm_energy.scheduling import rankings

    named_policies.import_modules(rankings)
