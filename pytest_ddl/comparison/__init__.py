"""Comparing a training function with one device: what runs where, how often, and in which precision."""
