"""Recipes of recovery from the documentation of TensorFlow and Keras, interrupted at many points."""
