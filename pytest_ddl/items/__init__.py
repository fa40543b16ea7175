"""A test that asks for a strategy: which variants it runs under, its phases on all ranks, one report out of theirs."""
