"""Property tests: what must hold for all models, optimizers, batch sizes and payloads."""
