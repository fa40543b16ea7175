"""Recognize what a framework is known to do by itself, so that a program is not blamed for it."""
