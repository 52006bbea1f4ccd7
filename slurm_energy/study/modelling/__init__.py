"""Step 4 of a study: the digital twin of the cluster, with calibration, replay and forecasts."""
