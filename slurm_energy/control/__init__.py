"""Control of hardware settings: claims of jobs, arbitration between them, journal, apply and restore.

Policies decide which settings a job requests; drivers in `devices` read and write them.
"""
