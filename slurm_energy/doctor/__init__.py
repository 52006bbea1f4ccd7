"""`senergy doctor`: inspect a host, diagnose the findings, report the results.

It changes nothing on the host.
"""
