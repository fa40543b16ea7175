"""The published experiment, reproduced: an MNIST-shaped network trained on 1 and on 2 replicas."""
