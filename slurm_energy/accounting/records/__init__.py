"""Records, traces and periods of nodes: storage of the deliveries of agents, and queries."""
