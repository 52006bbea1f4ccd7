"""Parts of benchmarks/live_energy.py: the jobs, the lab that runs them, and their simulation."""
