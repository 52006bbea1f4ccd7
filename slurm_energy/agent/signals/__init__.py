"""Signals of running jobs: sampling of hardware and control groups, recorded series, reported steps."""
