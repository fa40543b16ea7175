"""Compare a training function with one device: which runs are made, how often, and in which precision."""
