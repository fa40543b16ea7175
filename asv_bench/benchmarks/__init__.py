"""Benchmarks that asv runs: training steps, input and checkpoints, collectives, and the harness itself."""
