"""The record store: schema, ingest, queries, job facts, traces, and the client of the controller."""
