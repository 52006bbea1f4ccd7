"""The objective of a study: its indicators, targets, limits and the conclusions that it names."""
