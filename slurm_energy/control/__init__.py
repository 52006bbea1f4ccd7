"""Control of hardware settings: claims of jobs, arbitration between them, journal, apply and restore.

A claim is the value that one job requests for a knob (a value of the hardware that can be set). Energy
policies decide what a job requests; the drivers in `devices` read and write the hardware.
"""
