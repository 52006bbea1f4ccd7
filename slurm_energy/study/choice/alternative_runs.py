"""Simulations of the alternatives of a study, which are combinations of energy-saving measures.

The simulations run in parallel. Their results are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import Any

from slurm_energy.study.choice.alternatives import StudyAlternative
from slurm_energy.study.modelling.forecast import ForecastInput, forecast_run
from slurm_energy.study.step_run import StepRun
from slurm_energy.worker_processes import end_with_parent, process_pool

Progress = Callable[[int, int], None]


class AlternativeRuns:
    """Simulations of study alternatives (combinations of energy-saving measures) over all seeds.

    Finished simulations are stored, so that an interrupted run can be continued.

    Args:
        run: the running step `choose`, which stores the results.
        data: common input of all simulations.
        seeds: number of simulated periods. Each seed stands for one period.
        processes: number of parallel processes.
        progress: function that is called with the numbers of finished simulations and of all simulations.

    Attributes:
        runs: figures of `forecast_run` by name of the alternative, as a list with one element per seed.
    """

    def __init__(
        self, run: StepRun, data: ForecastInput, seeds: int, processes: int, progress: Progress
    ) -> None:
        self._run, self._data, self._progress = run, data, progress
        self._seeds, self._processes = range(seeds), processes
        self.runs: dict[str, list[dict[str, Any]]] = {}

    def simulate(self, alternatives: Sequence[StudyAlternative]) -> None:
        """Simulate each alternative with each seed, unless the result is already stored."""
        tasks = [(one, seed) for one in alternatives for seed in self._seeds]
        found: dict[tuple[str, int], dict[str, Any]] = {}
        missing = []
        for one, seed in tasks:
            stored = self._run.partial(_partial_name(one, seed))
            if isinstance(stored, dict) and stored.get("alternative") == _identity(one):
                found[one.name, seed] = stored["figures"]
            else:
                missing.append((one, seed))
        self._progress(len(found), len(tasks))
        for one, seed, figures in self._simulated(missing):
            stored = {"alternative": _identity(one), "figures": figures}
            self._run.save_partial(_partial_name(one, seed), stored)
            found[one.name, seed] = figures
            self._progress(len(found), len(tasks))
        for one in alternatives:
            self.runs[one.name] = [found[one.name, seed] for seed in self._seeds]

    def _simulated(
        self, tasks: Sequence[tuple[StudyAlternative, int]]
    ) -> Iterator[tuple[StudyAlternative, int, dict[str, Any]]]:
        if self._processes == 1 or len(tasks) < 2:
            for one, seed in tasks:
                yield one, seed, forecast_run(self._data, one, seed)
            return
        count = min(self._processes, len(tasks))
        with process_pool(count, "--processes", initializer=end_with_parent) as pool:
            waiting = {pool.submit(forecast_run, self._data, *task): task for task in tasks}
            try:
                for future in as_completed(waiting):
                    yield *waiting[future], future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after an error the others need not run


def _identity(alternative: StudyAlternative) -> dict[str, Any]:
    return alternative.document() | {"weights": dict(alternative.weights)}


def _partial_name(alternative: StudyAlternative, seed: int) -> str:
    return f"{alternative.name}-{seed}"
