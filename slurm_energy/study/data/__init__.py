"""Measured data of a study: jobs and energy of a period, its days and outages, and KPI values."""
