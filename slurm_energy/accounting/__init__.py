"""Database of senergyctld, which stores the energy records.

The package contains the schema, the storage, queries, facts about jobs, power traces and the history of
runs.
"""
