"""The emulated files of a node below `/sys`, `/dev` and `/proc`: their content and the effect of writes.

`slurm_energy_lab.emulator.fuse` serves the files, `slurm_energy_lab.model` holds the physics.
"""
