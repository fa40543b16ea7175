"""Show that DepthwiseConv1D makes numbers with a kernel that does not fit into its input, where a symbol is refused.

Expected:
Both are refused: no window of 9 numbers is in 7 numbers.
"""

import sys

import keras
import numpy as np

outcomes = {}
for name, x in {"array": np.ones((3, 7, 4), "float32"), "symbol": keras.KerasTensor((3, 7, 4))}.items():
    try:
        outcomes[name] = tuple(keras.layers.DepthwiseConv1D(9, strides=3)(x).shape)
    except Exception as error:
        outcomes[name] = f"a {type(error).__name__}"
if outcomes["array"] != outcomes["symbol"]:
    sys.exit(f"an array gives {outcomes['array']}, and a symbol {outcomes['symbol']}")
