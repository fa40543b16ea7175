"""Make one report of the results of all checks."""
