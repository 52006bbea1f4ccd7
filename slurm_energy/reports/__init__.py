"""Energy records as tables, labels, plots and pages: pure functions from records to text."""
