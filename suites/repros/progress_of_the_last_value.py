"""Show that a progress bar that reaches its target shows the last value in place of the average.

Expected:
The last line shows 2.0000, the average of 1, 2 and 3: the documentation of Progbar.update says that an average over
time is shown of what is not in stateful_metrics.
"""

import contextlib
import io
import sys

import keras

with contextlib.redirect_stdout(io.StringIO()) as shown:
    bar = keras.utils.Progbar(3, interval=0)
    for value in (1.0, 2.0, 3.0):
        bar.add(1, [("value", value)])
if not shown.getvalue().rstrip().endswith("value: 2.0000"):
    sys.exit(f"the average of 1, 2 and 3 is shown as {shown.getvalue().split()[-1]}")
