"""Performance history over commits: read asv's results as series, find change points, and write one page."""
