"""Energy studies in six steps: objective, baseline, classes, model, choice and deployment, validation.

A study is a directory, see `StudyDirectory`. Each step has a module that reads the results of earlier steps,
and writes its own below the directory. Method: thesis, section 6.3.
"""
