"""Forecast of the time of a step for more replicas than were measured, with intervals, refusals and a score."""
