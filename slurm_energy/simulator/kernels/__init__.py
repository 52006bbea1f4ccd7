"""Compiled loops of the simulation engine, and data structures shared by these loops."""
