"""The objective of a study: KPIs, targets, limits, and statements that the report judges."""
