"""Control of hardware settings: claims of jobs, arbitration between them, journal, apply and restore.

A claim is the value that one job requests for a knob (a hardware value that can be set). Energy policies
decide which values a job requests. The drivers in `devices` read and write the hardware.
"""
