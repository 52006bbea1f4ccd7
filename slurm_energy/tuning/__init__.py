"""Tuning: choice of hardware settings for an objective. The agent and the controller apply the settings."""
