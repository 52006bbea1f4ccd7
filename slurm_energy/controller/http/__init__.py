"""HTTP interface of senergyctld: connections, identity and authorization of callers, limits, responses."""
