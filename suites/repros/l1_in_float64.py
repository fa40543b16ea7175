"""Show that the regularizer L1 cannot penalize weights in float64.

Expected:
The penalty of the weight 2 is 0.5.
"""

import sys

import keras

try:
    keras.regularizers.L1(0.25)(keras.ops.convert_to_tensor([2.0], "float64"))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
