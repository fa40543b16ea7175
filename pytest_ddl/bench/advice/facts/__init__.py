"""Facts that the rules of the advice judge: launches with and without a knob, and what they gain."""
