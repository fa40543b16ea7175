"""Evaluation of a training function: one table and one page over strategies and numbers of replicas."""
