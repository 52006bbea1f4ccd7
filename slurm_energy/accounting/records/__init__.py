"""Records, traces and periods of nodes: storage of deliveries and queries."""
