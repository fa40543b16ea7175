"""Call Keras with its NumPy backend in another process, and compare its answers with those of TensorFlow."""
