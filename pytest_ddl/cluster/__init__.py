"""Clusters of worker processes: how they start, answer, fail and end. No check lives in here."""
