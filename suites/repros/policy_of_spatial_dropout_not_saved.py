"""Show that SpatialDropout1D in mixed precision becomes one in float32 when it is read from its configuration.

Expected:
The policies are equal.
"""

import sys

import keras

layer = keras.layers.SpatialDropout1D(0.5, dtype="mixed_float16")
copy = keras.layers.SpatialDropout1D.from_config(layer.get_config())
if copy.dtype_policy != layer.dtype_policy:
    sys.exit(f"the policy is {copy.dtype_policy.name} in place of {layer.dtype_policy.name}")
