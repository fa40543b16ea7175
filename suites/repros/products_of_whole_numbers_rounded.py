"""Show that a product of matrices of int64 is computed in floating point.

Expected:
The number is exact, as it fits into 64 bits.
"""

import sys

import keras

large = keras.ops.cast([[2**40 + 1]], "int64")
one = keras.ops.cast([[1]], "int64")
found = keras.ops.matmul(large, one)
if int(found[0, 0]) != 2**40 + 1:
    sys.exit(f"the product with 1 is {int(found[0, 0])} in place of {2**40 + 1}")
