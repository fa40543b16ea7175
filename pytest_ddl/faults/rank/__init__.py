"""Faults inside a rank: the points that a run reaches, and the faults that strike at them."""

RELAYED = "PYTEST_DDL_RELAYED_TASKS"
"""Environment variable of a cluster with the names of the tasks whose connections go through a relay, with commas."""
