"""The record store of the controller: schema, ingest, queries, job facts, traces and run history."""
