"""The record store of senergyctld: schema, ingest, queries, job facts, power traces and run history."""
