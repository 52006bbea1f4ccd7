"""The queue as slurmctld sees it: one set of columns, whatever it was read from."""
