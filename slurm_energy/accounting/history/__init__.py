"""Finished runs in the database: inputs of predictions, forecasts and tuning."""
