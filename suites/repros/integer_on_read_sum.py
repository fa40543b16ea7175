"""Show that an integer ON_READ variable with aggregation SUM does not hold the value that it was assigned.

Expected:
Reading gives 10. The remainder of the division by the number of replicas belongs to one of them.
"""

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
with strategy.scope():
    synchronization, aggregation = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    total = tf.Variable(0, synchronization=synchronization, aggregation=aggregation, trainable=False)
    total.assign(10)
    if int(total.read_value()) != 10:
        raise SystemExit(f"assigned 10, read {int(total.read_value())}")
