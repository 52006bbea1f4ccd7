"""Configuration of the tests in tests/lab: temporary directories in memory."""

from temporary_directories import tmp_path, tmp_path_factory  # noqa: F401  fixtures
