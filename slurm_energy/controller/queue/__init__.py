"""The job queue in senergyctld: priority cycles, interventions on jobs, and HTTP routes."""
