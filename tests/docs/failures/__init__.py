"""Gallery of failures: small programs with one mistake each, and the page of the docs that shows their reports."""
