"""The regression suite that is run against the installed TensorFlow and Keras: ``pytest suites --ddl-strategy=all``."""
