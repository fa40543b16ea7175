"""Launches: run a training function in fresh processes, in blocks of steps on command, and read clocks and meters."""
