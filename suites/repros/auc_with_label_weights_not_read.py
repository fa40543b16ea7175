"""Show that the metric AUC with weights of labels cannot be read from its configuration.

Expected:
It is read, as metrics without weights are.
"""

import sys

import keras

metric = keras.metrics.AUC(multi_label=True, label_weights=[1.0, 2.0])
try:
    keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
except (TypeError, ValueError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
