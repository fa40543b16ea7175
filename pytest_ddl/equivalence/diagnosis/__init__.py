"""Find the cause of a difference: recompute what a known mistake would have given."""
