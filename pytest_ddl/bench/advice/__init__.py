"""Advice from measurements: what limits a training function, what to change, and whether the change held."""
