"""The emulated files of a node below `/sys`, `/dev` and `/proc`: their content and the effect of writes.

`slurm_energy_lab.emulator.fuse` serves the files, and `slurm_energy_lab.model` contains the physics.
"""
