"""Energy studies of a cluster in six steps, from an objective to a validated saving.

A study is a directory, see `StudyDirectory`. Each step is a module that reads the results of earlier steps.
It writes its own results below the directory. Method: thesis, section 6.3.
"""
