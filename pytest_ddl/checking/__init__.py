"""Check a training function without a test file: ``pytest-ddl check``."""
