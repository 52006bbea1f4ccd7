"""The live queue in senergyctld: priority cycles, interventions on jobs, routes."""
