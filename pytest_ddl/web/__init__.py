"""What HTML pages share: their look, and how numbers are written."""
