"""senergyctld, the cluster daemon: HTTP, access, enrichment, policy file and life cycle; no SQL here."""
