"""Jobs of a simulation: tables, generators, statistics and resource demand."""
