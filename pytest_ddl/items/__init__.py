"""Run a test that asks for a strategy: select its variants, run its phases on all ranks and merge their reports."""
