"""Keep servers that have imported TensorFlow, for the zygotes of later runs."""
