"""All mistakes, each in a program to which its fix is applied."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fixes import data_cases, gradient_cases, number_cases, run_cases, special_cases, value_cases

CASES = (
    *gradient_cases.CASES,
    *number_cases.CASES,
    *value_cases.CASES,
    *value_cases.RANDOM_CASES,
    *data_cases.CASES,
    *data_cases.UNEQUAL_CASES,
    *data_cases.CHECKPOINT_CASES,
    *run_cases.CASES,
    *special_cases.CASES,
)
ADVICE: Mapping[str, str] = {
    "replica-computes-otherwise": "any line of the replica function",
    "reduced-value-wrong": "which statistic is computed from the sums depends on the program",
    "attribute-shared-by-replicas": "which value becomes local depends on the program",
    "changed-after-last-step": "any line after the loop",
    "random-stream-differs-across-replicas": "a correct program may do it",
    "closure-depends-on-others": "which value the closure reads depends on the program",
    "workers-diverged": "which value all workers assign depends on the program",
    "unequal-steps": "how the data is made longer or shorter depends on the program",
    "lost-update": "which assignment is replaced depends on the program",
    "closures-not-awaited": "the call is added before whatever reads the weights",
    "duplicate-update": "what makes a closure safe to repeat depends on what it does",
    "rank-conditional-collective": "the condition is removed, whatever it is",
    "unsupported-by-framework": "the message names the alternative",
    "cluster-misconfigured": "the environment of the processes, or the order of lines",
    "worker-raised": "any exception of the program",
    "worker-died": "any end of a process",
    "rank-did-not-run": "any code that depends on the rank",
    "deadline-exceeded": "any place at which ranks wait",
    "watched-otherwise": "the condition is removed, whatever it is",
    "watched-late": "which steps change it depends on the program",
    "counter-of-keras": "the counter is one of Keras, and stays wrong",
    "condition": "which value decides depends on the program",
    "examples-left-out": "the selection is removed, whatever it is",
    "pairs-broken": "which operation is applied to both depends on the program",
    "update-outside-of-run": "the update moves into the replica function, whatever it is",
    "dataset-of-the-coordinator": "the lines that make the dataset move",
    "iterator-for-a-batch": "the line is added at the beginning of the step",
    "assigned-without-aggregation": "which assignment moves depends on the program",
    "synchronized-in-a-branch": "which condition moves out of the replica function depends on the program",
    "examples-equal": "the data is the program's own",
    "closures-per-step": "the number of steps is the program's own",
    "strategy-of-the-program": "the environment of the processes, or the order of lines",
    "end-of-training": "what decides when training ends depends on the program",
    "train-on-batch": "a call of fit replaces the loop, whatever it is",
    "steps-one-by-one": "whatever a step computes otherwise than one device",
}
"""Fixes without code, each with the reason why no code can be given."""
