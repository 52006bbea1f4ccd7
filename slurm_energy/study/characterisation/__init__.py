"""Step 3 of an energy study: classes of similar jobs, and the response curve of each class.

A response curve states how hardware settings change the time and power of jobs.
"""
