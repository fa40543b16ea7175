"""Show that ops.while_loop with a limit takes no KerasTensor.

Expected:
A KerasTensor with the shape of the variable.
"""

import sys

import keras

try:
    keras.ops.while_loop(lambda n: n < 5, lambda n: (n + 1,), (keras.KerasTensor((), "int32"),), maximum_iterations=3)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
