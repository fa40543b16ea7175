"""Show that gelu of a number below -6 is 0 in float32.

Expected:
It is x times the share of a normal distribution below x, which float32 can hold: -5.92e-09 for -6.
"""

import math
import sys

import tensorflow as tf

expected = -3 * math.erfc(6 / math.sqrt(2))
found = float(tf.nn.gelu(tf.constant(-6.0)))
if abs(found - expected) > 1e-3 * abs(expected):
    sys.exit(f"gelu(-6) is {found:.3g}, not {expected:.3g}")
