"""Regression suite for the installed TensorFlow and Keras. Run it with ``pytest suites --ddl-strategy=all``."""
