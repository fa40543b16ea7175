"""Show that Strategy.reduce takes a nest under MirroredStrategy, but not under CentralStorageStrategy.

Expected:
Every strategy takes a nest, as the documentation of Strategy.reduce says, or refuses it with an error that says so.
"""

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
for kind in (tf.distribute.MirroredStrategy, tf.distribute.experimental.CentralStorageStrategy):
    strategy = kind(["CPU:0", "CPU:1"])
    value = strategy.experimental_distribute_values_from_function(lambda context: tf.constant(1.0))
    try:
        strategy.reduce("SUM", [value, value], axis=None)
    except ValueError as error:
        raise SystemExit(f"{kind.__name__}: {error}".replace("\n", " ")) from None
