"""Output of `senergy acct`: its columns, rows and JSON or YAML documents."""
