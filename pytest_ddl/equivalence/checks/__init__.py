"""Checks: one module each, with one entry in the registry."""
