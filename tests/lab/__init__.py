"""The laboratory: recorded comparisons that are judged again without TensorFlow, as they are and with changes."""
