"""Columns, rows and documents of `senergy acct`."""
