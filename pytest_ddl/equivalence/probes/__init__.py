"""Repeat a comparison in another way, because the first report leaves something open."""
