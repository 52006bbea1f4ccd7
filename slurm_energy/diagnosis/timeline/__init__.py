"""Timelines of jobs: events, profiler traces, signals and findings as a Chrome trace and a page.

Pure functions on data and streams that the caller opened. Names are chosen by users and are escaped here.
"""
