"""Simulations of several clusters, each with its own prices and carbon intensity."""
