"""The lab: emulated power hardware and a real Slurm cluster on one machine. No product module imports it.

`senergy lab` is the entry point `slurm_energy_lab.cli` of the group `slurm_energy.subcommands`.

Rooms: `model` (physics of a node), `tree` (its emulated files), `emulator` (the process that serves them),
`cluster` (Slurm and its daemons in namespaces). `etc` holds templates of configuration files, `profiles` the
hardware profiles, `native` the C sources of the vendor libraries and of the task plugin.
"""
