"""Performance over commits: asv's results as series, change points in them, and one page that shows both."""
