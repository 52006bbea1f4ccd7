"""What jobs seen before say of the next one: runs, their distributions, and the oracle made of them.

Pure: runs come in as data; where they are stored is the accounting room's matter.
"""

from slurm_energy.oracle.history.forecast import Forecast
from slurm_energy.oracle.history.history_oracle import HistoryOracle
from slurm_energy.oracle.history.observed_run import ObservedRun, RunEnding
from slurm_energy.oracle.history.run_history import History

__all__ = ["Forecast", "History", "HistoryOracle", "ObservedRun", "RunEnding"]
