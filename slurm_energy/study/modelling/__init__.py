"""Step 4 of a study: the digital twin, its calibration, its replay and forecasts with it."""
