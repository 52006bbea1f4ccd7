"""senergyctld, the cluster daemon: HTTP interface, access control, enrichment, life cycle. No SQL here."""
