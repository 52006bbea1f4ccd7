"""Progress of a running job: units of work per second, from reports, power periods or hardware counters."""
