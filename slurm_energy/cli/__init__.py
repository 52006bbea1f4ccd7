"""Command line interface: the command `senergy`.

Each subcommand has its own module. The modules only parse arguments and print results.
"""
