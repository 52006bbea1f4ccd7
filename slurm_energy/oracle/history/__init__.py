"""What jobs seen before say of the next one: runs, their distributions, and the oracle made of them.

Pure: runs come in as data; where they are stored is the accounting room's matter.
"""

from slurm_energy.oracle.history.forecast import Forecast
from slurm_energy.oracle.history.memory import History
from slurm_energy.oracle.history.predictor import HistoryOracle
from slurm_energy.oracle.history.runs import Ending, Run

__all__ = ["Ending", "Forecast", "History", "HistoryOracle", "Run"]
