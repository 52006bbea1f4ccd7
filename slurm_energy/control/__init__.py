"""Control of hardware settings on a node.

The package merges the values that several jobs request for the same setting (arbitration). It writes
them, and restores the original values later. The original values are kept in a journal. A claim is
the value that one job requests for a knob (a hardware value that can be set). Energy policies decide
which values a job requests. The drivers in `devices` read and write the hardware.
"""
