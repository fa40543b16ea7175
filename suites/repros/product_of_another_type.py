"""Show that ops.prod ignores the type that it is asked for.

Expected:
The type is float32, as it is asked for, as the documentation says, and as a KerasTensor is told.
"""

import sys

import keras

found = keras.ops.prod(keras.ops.ones((2, 3), "float16"), dtype="float32").dtype
if found != "float32":
    sys.exit(f"dtype='float32' gives {getattr(found, 'name', found)}")
