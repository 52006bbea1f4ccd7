"""Backup, restoration, recovery, export and integrity of the database."""
