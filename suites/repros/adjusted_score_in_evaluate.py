"""Show that evaluate cannot compute R2Score with num_regressors, unless it runs eagerly.

Expected:
The score is that of an eager run.
"""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(loss="mse", metrics=[keras.metrics.R2Score(num_regressors=2)])
try:
    model.evaluate(np.arange(5.0)[:, None], np.arange(5.0)[:, None], verbose=0)
except Exception as error:
    sys.exit(f"evaluate raises {type(error).__name__}")
