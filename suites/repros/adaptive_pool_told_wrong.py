"""Show that ops.adaptive_max_pool of a KerasTensor of images has one axis too many, and takes no number.

Expected:
The shapes are those of the results, (2, 3, 2, 4) and (2, 2, 2, 4).
"""

import sys

import keras

images, found = keras.KerasTensor((2, 5, 6, 4)), []
for size in ((3, 2), 2):
    try:
        found.append(str(keras.ops.adaptive_max_pool(images, size, data_format="channels_last").shape))
    except TypeError as error:
        found.append(f"TypeError: {error}")
if found != ["(2, 3, 2, 4)", "(2, 2, 2, 4)"]:
    sys.exit(f"the shapes are {' and '.join(found)}")
