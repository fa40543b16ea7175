"""Benchmarks of the harness itself: what a test pays for running on a cluster."""
