"""The lab: emulated power hardware and a real Slurm cluster on one machine.

No module of the product imports the lab. `senergy lab` is the entry point `slurm_energy_lab.cli` of the group
`slurm_energy.subcommands`.

Packages: `model` (physics of a node), `tree` (emulated files of a node), `emulator` (the process that serves
these files) and `cluster` (Slurm and its daemons in namespaces). Directories: `etc` (templates of
configuration files), `profiles` (hardware profiles) and `native` (C sources of the vendor libraries and of
the task plugin).
"""
