"""Energy data of a cluster as pandas data frames, for notebooks and scripts.

    from slurm_energy import frames
    jobs = frames.jobs(start="now-7days", accounts=["physics"])
    jobs.groupby("user").energy_joules.sum()

Every function returns a `pandas.DataFrame` whose columns have fixed names and types. `frame.attrs["units"]`
contains the unit of each column. Unknown numbers are NaN, never 0. Times are time zone aware (UTC).
pandas is needed: `pip install 'slurm-energy[analysis]'`.
"""

from slurm_energy.frames.controller_frames import jobs, queue, steps, trace
from slurm_energy.frames.file_frames import simulation, sweep
from slurm_energy.frames.usage_frame import report

__all__ = ["jobs", "queue", "report", "simulation", "steps", "sweep", "trace"]
