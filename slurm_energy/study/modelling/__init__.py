"""Step 4 of a study: the digital twin, its calibration, replay and forecasts."""
