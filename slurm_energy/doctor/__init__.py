"""`senergy doctor`: inspect a host, diagnose the findings, report the results.

The command changes nothing on the host.
"""
