"""Cache of the results of a campaign, in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_energy import __version__
from slurm_energy.errors import UnavailableError
from slurm_energy.simulator.campaigns.run_result import CampaignTask, RunResult
from slurm_energy.simulator.scenario import Scenario


class ResultCache:
    """Cache of simulation results in a folder, so that an interrupted campaign can resume.

    Without a folder the cache stores nothing. A stored result is valid only for the same release of
    slurm-energy, the same scenario text, the same policy file, and input files of the same size and
    modification time.

    Raises:
        UnavailableError: the folder cannot be created, or a result cannot be written.
    """

    def __init__(self, folder: Path | None, scenario: Scenario, policy_file: Path | None = None) -> None:
        self._folder = folder / "runs" if folder else None
        files = [_file_state(path) for path in (*scenario.input_files(), policy_file) if path is not None]
        text = json.dumps([__version__, asdict(scenario.workload), scenario.text, files])
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        if self._folder:
            with _reported_as_unavailable(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)

    def recall(self, task: CampaignTask) -> RunResult | None:
        """Return the stored result of a task; None if no valid result is stored."""
        if self._folder is None:
            return None
        try:
            data = json.loads((self._folder / f"{task.name}.json").read_bytes())
            return RunResult(**data["result"]) if data["digest"] == self._digest else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, result: RunResult) -> None:
        """Store the result of one simulation atomically; without a folder do nothing."""
        if self._folder is None:
            return
        path = self._folder / f"{result.policy}-{result.seed}.json"
        aside = path.with_suffix(".new")
        with _reported_as_unavailable(path):
            aside.write_text(json.dumps({"digest": self._digest, "result": asdict(result)}))
            aside.replace(path)


@contextmanager
def _reported_as_unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(str(path), error.strerror or str(error), "name a writable folder") from None


def _file_state(path: Path) -> list[Any]:
    """Return the path, size and modification time of a file; only the path if the file cannot be read.

    The path is absolute, because the tasks of a job array get absolute paths instead of the user's.
    """
    name = str(path.absolute())
    try:
        state = path.stat()
    except OSError:
        return [name]
    return [name, state.st_size, state.st_mtime_ns]
