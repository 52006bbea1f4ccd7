"""Metrics of senergyd and senergyctld for Prometheus: exposition format and HTTP listener."""
