"""Records and energy sums in senergyctld: deliveries of agents, storage, enrichment, retention, reports."""
