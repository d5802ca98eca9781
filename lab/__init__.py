"""Experiments: what hand-written kernels and graph edges reach, and counts of the code."""
