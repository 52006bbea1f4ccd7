"""The lab: emulated power hardware and a real Slurm cluster on one machine. No product module imports it.

`senergy lab` is the entry point `slurm_energy_lab.cli` of the group `slurm_energy.subcommands`.
"""
