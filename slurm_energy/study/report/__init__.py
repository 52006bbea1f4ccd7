"""The report of a study as page, notebook and JSON."""
