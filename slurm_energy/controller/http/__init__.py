"""HTTP interface of senergyctld: connections, identity and rights of callers, limits, responses."""
