"""Property tests of rules that hold for all models, optimizers, batch sizes and payloads."""
