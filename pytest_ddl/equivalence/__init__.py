"""Compare a training function under a strategy with the same function on one device, and name the cause."""
