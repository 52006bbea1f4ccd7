"""Presentation of energy records: tables, energy labels, plots and HTML pages.

Pure functions from records to text.
"""
