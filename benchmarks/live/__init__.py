"""Parts of benchmarks/live_energy.py: the jobs, the lab that runs them, the simulation of the same jobs."""
