"""Arguments, help pages and colours that all commands and both daemons share."""
