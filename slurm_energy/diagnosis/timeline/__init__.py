"""Timelines of jobs: events, profiler traces, signals and findings as a Chrome trace and a page.

Pure functions on data and streams that the caller opened. Users choose the names that appear in a timeline;
this package escapes the names.
"""
