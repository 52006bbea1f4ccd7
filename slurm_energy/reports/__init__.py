"""Presentation of energy records: tables, energy labels, plots and HTML pages.

All functions are pure: they return text that depends only on the given records.
"""
