"""Energy studies of a cluster in six steps, from an objective to a validated saving.

A study is a directory, see `StudyDirectory`. Each step has a module. The module reads the results of earlier
steps and writes its own results below the directory. Method: thesis, section 6.3.
"""
