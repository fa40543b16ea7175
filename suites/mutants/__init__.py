"""Change functions of Keras at random, and see which changes the suite misses: ``python -m suites.mutants``.

mutmut and cosmic-ray do not fit: they change files of a source tree and start its tests anew for each mutant. Here
the changed code is that of an installed package, and one process collects the suite once and forks for each mutant.
"""
