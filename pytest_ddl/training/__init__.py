"""Run training functions and record them: the ``run`` object, the recorder and the observers.

No module here imports TensorFlow at import time. The functions that need TensorFlow import it when
they run, which is always in a worker process whose strategy already exists.
"""
