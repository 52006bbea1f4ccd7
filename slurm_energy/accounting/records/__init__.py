"""Records, traces and periods of nodes: storage of what agents deliver, and queries."""
