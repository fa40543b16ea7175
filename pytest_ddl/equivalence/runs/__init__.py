"""Run a training function on one device and under a strategy, and compare the records."""
