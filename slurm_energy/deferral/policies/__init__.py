"""The built-in deferral policies, one file each."""
