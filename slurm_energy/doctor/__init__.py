"""Code of `senergy doctor`: inspect a host, diagnose what was found, and report the results.

The command changes nothing on the host.
"""
