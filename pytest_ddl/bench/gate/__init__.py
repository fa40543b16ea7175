"""The gate: is HEAD slower than BASE? Both versions alive at once, in turn, launch by launch, until it is known."""
