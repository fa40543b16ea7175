"""Common parts of HTML pages: their look, and the format of numbers."""
