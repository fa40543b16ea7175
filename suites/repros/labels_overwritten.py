"""Show that fit with two replicas overwrites the labels that a generator yields.

Expected:
The arrays of the user keep their values. tf.data takes an array whose address 64 divides without a copy, and the step
of a replica then writes the errors of the predictions into it. The next epoch trains with the errors as labels.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
memory = np.zeros(1024, "uint8")
labels = memory[-memory.ctypes.data % 64 :][:128].view("float32").reshape(4, 8)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, kernel_initializer="ones")])
    model.compile("sgd", "mse", jit_compile=False)
model.fit(((np.ones((4, 8), "float32"), labels) for _ in range(3)), steps_per_epoch=1, verbose=0)
if labels.any():
    sys.exit("the labels of the user were 0 before the training, and are not now")
