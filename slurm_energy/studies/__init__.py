"""Simulations of schedules from Python: runs, comparisons, sweeps, single steps, and own policies.

    from slurm_energy import studies
    study = studies.read("training")
    study.run("zeus").summary["energy_kwh"]
    study.compare(["fcfs", "zeus"], seeds=range(5)).groupby("policy").energy_kwh.mean()

The extra `simulation` is needed, and `analysis` (pandas) for data frames. docs/python-api.md has examples.
`slurm_energy.studies.environment` is an environment of Gymnasium; it needs the extra `gym`.
"""

from slurm_energy.scheduling import Options, Queue, Ranking, register
from slurm_energy.studies.session import SimulationSession
from slurm_energy.studies.study import Study, StudyRun, parse, read

__all__ = [
    "Options",
    "Queue",
    "Ranking",
    "SimulationSession",
    "Study",
    "StudyRun",
    "parse",
    "read",
    "register",
]
