"""Output about power budgets: text, HTML pages and time series."""
