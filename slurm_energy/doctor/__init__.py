"""`senergy doctor`: inspect a host, diagnose the findings, report them. Reads only, changes nothing."""
