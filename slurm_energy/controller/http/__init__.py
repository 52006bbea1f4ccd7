"""HTTP interface of senergyctld.

The package contains connections, the identity and authorization of callers, limits, and responses.
"""
