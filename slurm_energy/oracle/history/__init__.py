"""Predictions of jobs from the runs of earlier, similar jobs.

The package contains the records of runs, the distributions of their times, and the predictor (oracle) based
on them. The functions are pure: runs are passed in as data. The accounting package stores the runs.
"""

from slurm_energy.oracle.history.forecast import Forecast
from slurm_energy.oracle.history.history_oracle import HistoryOracle
from slurm_energy.oracle.history.observed_run import ObservedRun, RunEnding
from slurm_energy.oracle.history.run_history import History

__all__ = ["Forecast", "History", "HistoryOracle", "ObservedRun", "RunEnding"]
