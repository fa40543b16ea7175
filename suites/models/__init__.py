"""Models in NumPy of what TensorFlow documents, which the property tests compare it with."""
