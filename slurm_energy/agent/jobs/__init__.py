"""The life of a job on this node: begin, settings, steps, end, record. Runs in the worker thread only."""
