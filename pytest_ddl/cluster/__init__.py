"""Start, ask and end clusters of worker processes. This package contains no checks."""
