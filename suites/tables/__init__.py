"""Tables from which the property tests are generated, each with NumPy models."""
