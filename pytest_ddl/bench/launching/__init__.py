"""Launches: fresh processes for a training function, blocks of steps on command, clocks and meters in the ranks."""
