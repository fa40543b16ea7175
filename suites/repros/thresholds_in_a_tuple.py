"""Show that metrics refuse a tuple of thresholds, which their documentation allows.

Expected:
A tuple is taken as a list is.
"""

import sys

import keras

try:
    keras.metrics.Precision(thresholds=(0.25, 0.75))
except TypeError as error:
    sys.exit(f"TypeError: {error}")
