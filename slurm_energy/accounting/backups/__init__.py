"""Administration of the database: backup, restoration, recovery, export and integrity check."""
