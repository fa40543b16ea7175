"""Show that a model is told other types of results than those that operations have.

Expected:
The types are equal.
"""

import sys

import keras

wrong = []
for name, dtype in (("sum", "uint64"), ("prod", "uint64"), ("cbrt", "uint64"), ("logsumexp", "float64")):
    function = getattr(keras.ops, name)
    told, real = function(keras.KerasTensor((2,), dtype)).dtype, function(keras.ops.ones((2,), dtype)).dtype.name
    wrong += [f"{name} of {dtype}: told {told}, in fact {real}"] * (told != real)
if wrong:
    sys.exit("; ".join(wrong))
