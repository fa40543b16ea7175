"""The training side: the ``run`` object a training function receives, and what records it.

Nothing here imports TensorFlow when it is imported; the functions that need it do so when they
run, which is always inside a worker process whose strategy exists already.
"""
