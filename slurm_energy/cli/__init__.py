"""The `senergy` command: one module per subcommand, argument parsing and printing only."""
