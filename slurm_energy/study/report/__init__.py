"""The report of a study as HTML page, notebook and JSON."""
