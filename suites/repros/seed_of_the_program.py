"""Show that keras.utils.set_random_seed does not seed the numbers of keras.random a second time.

Expected:
The same seed gives the same number.
"""

import sys

import keras

found = []
for _ in range(2):
    keras.utils.set_random_seed(7)
    found.append(float(keras.random.normal(())))
if found[0] != found[1]:
    sys.exit(f"the numbers are {found}")
