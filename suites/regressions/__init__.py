"""Defects of TensorFlow and Keras that their users met: red on the versions that have them, green on all others."""
