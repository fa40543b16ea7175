"""The suite over versions of TensorFlow and Keras: ``python -m suites.matrix``."""
