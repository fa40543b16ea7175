"""Find out whether this machine can run distributed TensorFlow tests, without TensorFlow: ``pytest-ddl doctor``."""
