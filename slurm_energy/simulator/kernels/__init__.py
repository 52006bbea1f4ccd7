"""Compiled loops of the simulation engine, and the data structures that they share."""
