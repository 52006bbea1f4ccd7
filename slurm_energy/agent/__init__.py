"""The node agent, senergyd: plans, applies, measures, restores, records; one per node, as root.

`engine` and what it uses are synchronous and run in one worker thread; `daemon` wires them to sockets,
timers and the controller.
"""
