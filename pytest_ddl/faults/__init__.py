"""Interrupt a training program at any point, restart it as a platform does, and say what was lost."""
