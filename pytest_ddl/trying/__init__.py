"""Run an unmodified training script on one device and under each strategy: ``pytest-ddl try``."""
