"""Signals of running jobs in the agent.

The package samples hardware and control groups, records the values as series, and receives the steps that
programs report.
"""
