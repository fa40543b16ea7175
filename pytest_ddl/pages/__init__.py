"""HTML pages of failed comparisons, their index, and what other programs read: JUnit properties and annotations."""
