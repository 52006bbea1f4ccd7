"""senergyctld, the cluster daemon: HTTP interface, access control, accounting data, start and stop."""
