"""Energy labels of jobs, with notes and recommendations."""
