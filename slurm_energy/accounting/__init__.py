"""The record store of senergyctld: schema, storage, queries, job facts, power traces and run history."""
