"""The files of an emulated node below `/sys`, `/dev` and `/proc`: what each says and does on a write.

How they are served is in `slurm_energy_lab.emulator.fuse`, how power behaves in `slurm_energy_lab.model`.
"""
