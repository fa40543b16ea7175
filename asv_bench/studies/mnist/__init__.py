"""Reproduce the published experiment: train an MNIST-shaped network on 1 and on 2 replicas."""
