"""What asv measures: training steps, what surrounds them, collectives, and the harness itself."""
