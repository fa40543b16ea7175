"""Show that a creator of variables around the scope of MirroredStrategy gives the replicas other initial values.

Expected:
All replicas have the value 3. The creator is applied again to what the first replica has.
"""

import tensorflow as tf


def triple(create, **arguments):
    first = arguments["initial_value"]
    return create(**arguments | {"initial_value": lambda: 3.0 * (first() if callable(first) else first)})


cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.variable_creator_scope(triple), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    values = [float(part) for part in tf.Variable(1.0).values]
raise SystemExit(f"the replicas have {values}" if len(set(values)) > 1 else 0)
