"""Jobs with energy flags from Python: submit, wait, read record and trace, cancel.

    from slurm_energy import jobs
    job = jobs.submit("train.sh", policy="edp", slowdown_percent=5)
    job.wait()
    print(job.record()["energy_joules"], job.trace().total.max())

This package runs Slurm's commands sbatch, squeue, sacct and scancel, and requests records from senergyctld.
"""

from slurm_energy.jobs.energy_job import EnergyJob
from slurm_energy.jobs.submission import submit
from slurm_energy.slurm.sbatch import RefusedError

__all__ = ["EnergyJob", "RefusedError", "submit"]
