"""Text and pages about diagnoses, timelines and adjustments of jobs."""
