"""The guard of real jobs: compares the copies of a training program's state every few steps, without pytest."""
