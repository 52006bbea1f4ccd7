"""The objective of a study: the changes that it aims at, as its user configures them.

It consists of key performance indicators (KPIs), targets and limits for KPIs, and statements that the
report judges.
"""
