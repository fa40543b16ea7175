"""The process that runs Keras with its NumPy backend: it calls a function for each request, until the pipe ends."""

from __future__ import annotations

import os
import pickle
import sys
import warnings


def serve() -> None:
    """Answer requests on standard input until it ends."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints must not be taken for an answer
    warnings.simplefilter("ignore")
    from suites.backends.answers import Answer, answer_of

    try:
        from suites.backends.stand_in import install

        install()
        import keras

        ready: Answer = answer_of(keras.backend.backend)
    except Exception as error:
        ready = Answer(error=type(error).__name__, text=str(error))
    pickle.dump(ready, sink)
    sink.flush()
    while True:
        try:
            function, given = pickle.load(source)
        except EOFError:
            sys.exit()
        found = answer_of(function, *given)
        try:
            sent = pickle.dumps(found)
        except Exception as error:
            sent = pickle.dumps(Answer(error=type(error).__name__, text=f"the answer cannot be sent: {error}"))
        sink.write(sent)
        sink.flush()
