"""Subcommands of ``pytest-ddl``, one file each, and the frame that they share."""
