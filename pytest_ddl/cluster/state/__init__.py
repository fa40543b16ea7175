"""Remember what a warm rank must be after each test: the state of its process and of the modules of the user."""
