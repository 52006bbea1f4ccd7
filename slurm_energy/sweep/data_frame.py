"""Results of saved sweeps as pandas data frames. pandas is imported at the first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_energy.errors import NotFoundError, UnavailableError
from slurm_energy.sweep.state import load
from slurm_energy.tuning.sweep.result import sweep_result


def read_sweep(path: str | Path) -> Any:
    """Return the result of a sweep as a `pandas.DataFrame` with one row per point; row 0 is the reference.

    Each factor is a column with its values as text. The other columns are the keys of a point in
    docs/reference/json.md, for example `time_s`, `energy_joules`, `edp_gain_percent` and `pareto`.

    Example:
        >>> from slurm_energy.sweep.data_frame import read_sweep
        >>> frame = read_sweep("senergy-sweep-job.json")
        >>> frame.plot(x="gpu-cap", y="edp_gain_percent")

    Args:
        path: state file of a sweep, which `senergy sweep` writes.

    Raises:
        UnavailableError: pandas is not installed.
        NotFoundError: the file does not exist.
        UsageError: the file is not the state of a sweep.
    """
    try:
        import pandas
    except ImportError:
        raise UnavailableError("read_sweep", "pandas is not installed", "pip install pandas") from None
    state = load(Path(path))
    if state is None:
        raise NotFoundError(str(path), "there is no such file")
    repetitions = max((run.repetition for run in state.runs), default=1)
    return pandas.DataFrame(sweep_result(state.name, state.points, state.runs, repetitions).rows())
