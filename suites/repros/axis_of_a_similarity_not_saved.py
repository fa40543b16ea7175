"""Show that the metric CosineSimilarity that is read from its configuration measures another axis.

Expected:
The copy has the same value.
"""

import sys

import keras

metric = keras.metrics.CosineSimilarity(axis=0)
copy = keras.metrics.CosineSimilarity.from_config(metric.get_config())
given = [[1.0, 2.0], [0.0, 4.0]], [[1.0, 0.0], [3.0, 1.0]]
found, wanted = float(copy(*given)), float(metric(*given))
if abs(found - wanted) > 1e-6:
    sys.exit(f"the similarity is {found} in place of {wanted}")
