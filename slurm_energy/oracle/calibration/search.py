"""The search for the values that minimise the calibration's loss.

Differential evolution runs in segments, from which an interrupted search can resume. L-BFGS-B then refines
the best result. Source: thesis, 4.3.6 and Algorithm 2. The result depends on the seed only, not on the number
of worker processes or on interruptions.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.errors import UnavailableError, UsageError, install_extra
from slurm_energy.oracle.calibration.fit_problem import Array, Problem, Unknown, Weights
from slurm_energy.quantities import shown
from slurm_energy.worker_processes import end_with_parent, process_pool

try:
    from scipy.optimize import differential_evolution, minimize
except ImportError:
    raise UnavailableError("calibration", "scipy is not installed", install_extra("predict")) from None

SEGMENT = 20
"""Generations between two checkpoints."""
_POLISH_UNITS = 40
"""Units of progress of one polishing run, which takes about as long as this number of generations."""
_SMOOTHINGS = (0.1, 0.02, 0.004)
_STEP = 1e-4
_MAX_SOCKET_PATH_BYTES = 107
_KICK, _KICKED_SHARE, _KICK_STREAM = 0.04, 0.4, 7
"""Kicks: standard deviation as a share of each unknown's range, share of the unknowns that move, random
stream.
"""
Progress = Callable[[int, int, float], None]
"""Callback with finished and planned units of work, and the least loss; a generation is one unit."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of the search for the parameters of the model.

    The search is a differential evolution, followed by a refinement with L-BFGS-B ("polishing").

    Attributes:
        seed: seed of all random numbers.
        generations: generations of differential evolution.
        population: members per generation.
        workers: number of worker processes.
        weights: weights of the terms in the loss.
        mutation: range of the mutation factor.
        recombination: probability of crossover.
        spread: standard deviation of the first population around the start, divided by the range of each
            unknown.
        polish: iterations of L-BFGS-B at each of three degrees of smoothing.
        kicks: number of random moves away from the best vector, each followed by polishing.
    """

    seed: int = 1
    generations: int = 600
    population: int = 240
    workers: int = 1
    weights: Weights = Weights()
    mutation: tuple[float, float] = (0.3, 0.9)
    recombination: float = 0.7
    spread: float = 0.15
    polish: int = 250
    kicks: int = 12


def search(
    problem: Problem,
    unknowns: Sequence[Unknown],
    start: Array,
    settings: SearchSettings,
    checkpoint: Path | None = None,
    progress: Progress = lambda done, planned, loss: None,
) -> Array:
    """Return the values of the n unknowns that minimise the loss, shape (n,).

    Args:
        problem: measurements and model.
        unknowns: the unknowns, n entries.
        start: initial values, shape (n,).
        settings: settings of the search.
        checkpoint: file in which the state of the search is stored after every `SEGMENT` generations. If the
            file exists and belongs to the same problem and settings, the search resumes from it. None means
            no file.
        progress: function that is called when the state is stored. It gets the finished and the planned
            generations and the current loss.

    Raises:
        UsageError: the checkpoint belongs to another problem, or it cannot be read or written.
    """
    with _evaluator(problem, unknowns, settings) as losses:
        best = _evolve(
            unknowns,
            start,
            settings,
            losses,
            _State.of(problem, unknowns, start, settings, checkpoint),
            progress,
        )
    return _refine(problem, unknowns, best, settings, progress)


@dataclass(slots=True)
class _State:
    """State of a search for parameters, from which an interrupted search can resume.

    Attributes:
        digest: digest of the problem, the unknowns, the start, and the settings that affect the random
            numbers. A stored state with another digest is rejected.
        path: checkpoint file; None means that the state is not stored.
        done: number of finished generations.
        population: population after the last complete segment of generations; None means that no segment has
            finished.
    """

    digest: str
    path: Path | None
    done: int = 0
    population: Array | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        unknowns: Sequence[Unknown],
        start: Array,
        settings: SearchSettings,
        path: Path | None,
    ) -> _State:
        """Return the state that the checkpoint file holds.

        If `path` is None or the file does not exist, return the state of a search that has not started.
        """
        problem_parts = (problem.rows, problem.origin, unknowns, start.tolist())
        setting_parts = (settings.seed, settings.population, settings.weights, settings.mutation)
        text = repr((problem_parts, setting_parts, settings.recombination, settings.spread))
        state = cls(hashlib.sha256(text.encode()).hexdigest(), path)
        if path is None or not path.exists():
            return state
        try:
            with np.load(path, allow_pickle=False) as stored:
                digest, done, population = str(stored["digest"]), int(stored["done"]), stored["population"]
        except Exception as error:  # zipfile and numpy raise many exceptions for a damaged file
            raise UsageError(
                str(path), f"is not a checkpoint: {shown(str(error), 100)}", "remove it or name another"
            ) from None
        if digest != state.digest:
            raise UsageError(
                str(path), "is the checkpoint of other measurements or settings", "remove it or name another"
            )
        state.done, state.population = done, population
        return state

    def save(self) -> None:
        """Write the state of the search to its checkpoint file atomically.

        Nothing is written if the state has no file, or if the search has not computed anything yet.
        """
        if self.path is None or self.population is None:
            return
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            with temporary.open("wb") as stream:
                np.savez(stream, digest=self.digest, done=self.done, population=self.population)
            temporary.replace(self.path)
        except OSError as error:
            raise UsageError(
                str(self.path), error.strerror or str(error), "name a file that you may write"
            ) from None


def _evolve(
    unknowns: Sequence[Unknown],
    start: Array,
    settings: SearchSettings,
    losses: Callable[[Array], Array],
    state: _State,
    progress: Progress,
) -> Array:
    limits = np.array([unknown.limits for unknown in unknowns])
    if state.population is None:
        draw = np.random.default_rng(settings.seed).normal(size=(settings.population, len(unknowns)))
        spread = start + settings.spread * draw * np.ptp(limits, axis=1)
        state.population = np.clip(np.vstack((start, spread[1:])), limits[:, 0], limits[:, 1])
    best = state.population[0]
    while state.done < settings.generations:
        count = min(SEGMENT, settings.generations - state.done)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # scipy warns when a segment ends at its last generation
            result = differential_evolution(
                lambda columns: losses(columns.T),
                limits,
                init=state.population,
                maxiter=count,
                vectorized=True,
                updating="deferred",
                polish=False,
                tol=0.0,
                strategy="best1bin",
                mutation=settings.mutation,
                recombination=settings.recombination,
                rng=np.random.default_rng((settings.seed, state.done)),
            )
        state.population, best = result.population, result.x
        state.done += count
        state.save()
        progress(state.done, _planned(settings), float(result.fun))
    return np.asarray(best)


def _planned(settings: SearchSettings) -> int:
    return settings.generations + (_POLISH_UNITS * (1 + settings.kicks) if settings.polish else 0)


def _refine(
    problem: Problem, unknowns: Sequence[Unknown], best: Array, settings: SearchSettings, progress: Progress
) -> Array:
    """Refine the best result of the search for the calibration's parameters.

    A local search starts first from the best result, then several times from random positions near the
    best result so far. Return the parameter vector with the least loss.
    """
    if not settings.polish:
        return best
    limits = np.array([unknown.limits for unknown in unknowns])
    draw = np.random.default_rng((settings.seed, _KICK_STREAM))

    def value(vector: Array) -> float:
        return float(problem.loss(unknowns, vector[None], settings.weights)[0])

    best = min((best, _polish(problem, unknowns, best, settings, _SMOOTHINGS)), key=value)
    for kick in range(settings.kicks):
        progress(settings.generations + _POLISH_UNITS * (1 + kick), _planned(settings), value(best))
        offset = (
            draw.normal(size=len(unknowns))
            * (draw.random(len(unknowns)) < _KICKED_SHARE)
            * _KICK
            * np.ptp(limits, axis=1)
        )
        start = np.clip(best + offset, limits[:, 0], limits[:, 1])
        best = min((best, _polish(problem, unknowns, start, settings, _SMOOTHINGS[1:])), key=value)
    progress(_planned(settings), _planned(settings), value(best))
    return best


def _polish(
    problem: Problem,
    unknowns: Sequence[Unknown],
    vector: Array,
    settings: SearchSettings,
    smoothings: Sequence[float],
) -> Array:
    """Improve the fitted parameters by local optimisation (L-BFGS-B), and return the result.

    The optimisation runs once for each degree of smoothing of the loss.
    """
    limits = np.array([unknown.limits for unknown in unknowns])
    steps = np.diag(_STEP * np.ptp(limits, axis=1))
    for smoothing in smoothings:

        def slope(vector_at: Array, smoothing: float = smoothing) -> tuple[float, Array]:
            neighbours = np.where(vector_at + steps <= limits[:, 1], vector_at + steps, vector_at - steps)
            values = problem.loss(unknowns, np.vstack((vector_at, neighbours)), settings.weights, smoothing)
            return float(values[0]), (values[1:] - values[0]) / (neighbours - vector_at).diagonal()

        options = {"maxiter": settings.polish}
        result = minimize(slope, vector, jac=True, bounds=limits, method="L-BFGS-B", options=options)
        vector = np.clip(result.x, limits[:, 0], limits[:, 1])
    return np.asarray(vector)


@contextlib.contextmanager
def _evaluator(
    problem: Problem, unknowns: Sequence[Unknown], settings: SearchSettings
) -> Iterator[Callable[[Array], Array]]:
    """Yield a function that computes the losses of many vectors, distributed over the worker processes.

    The function takes vectors of shape (m, n) and returns losses of shape (m,).
    """
    if settings.workers <= 1:
        yield lambda vectors: problem.loss(unknowns, vectors, settings.weights)
        return
    context = multiprocessing.get_context("forkserver" if _socket_path_fits() else "spawn")
    arguments = (problem, list(unknowns), settings.weights)
    with process_pool(
        settings.workers, "--workers", context=context, initializer=_initialize_worker, initargs=arguments
    ) as pool:

        def losses(vectors: Array) -> Array:
            parts = np.array_split(vectors, settings.workers)
            return np.concatenate(list(pool.map(_chunk_losses, parts)))

        yield losses


def _socket_path_fits() -> bool:
    """Return whether the path of the fork server's socket in the temporary directory is short enough.

    Socket paths are limited to 107 bytes.
    """
    path_length = len("/pymp-xxxxxxxx/listener-xxxxxxxx")
    return (
        os.name == "posix" and len(os.fsencode(tempfile.gettempdir())) + path_length <= _MAX_SOCKET_PATH_BYTES
    )


_worker_state: list[Any] = []


def _initialize_worker(problem: Problem, unknowns: list[Unknown], weights: Weights) -> None:
    _worker_state[:] = [problem, unknowns, weights]
    end_with_parent()


def _chunk_losses(vectors: Array) -> Array:
    problem, unknowns, weights = _worker_state
    return np.asarray(problem.loss(unknowns, vectors, weights))
