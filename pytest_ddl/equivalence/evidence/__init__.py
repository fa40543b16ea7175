"""Read records: values, differences between them, and the bounds within which rounding may move them."""
