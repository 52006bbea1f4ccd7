"""Measured data of an energy study.

The data are the jobs and the energy of a period, its days and outages, and values of key performance
indicators (KPIs).
"""
