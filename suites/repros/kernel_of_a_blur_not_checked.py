"""Show that RandomGaussianBlur takes a kernel of -1 pixels.

Expected:
A ValueError about kernel_size, as of each other layer with a kernel.
"""

import sys

import keras

try:
    keras.layers.RandomGaussianBlur(kernel_size=-1)
except ValueError:
    sys.exit()
sys.exit("RandomGaussianBlur has a kernel of -1 pixels")
