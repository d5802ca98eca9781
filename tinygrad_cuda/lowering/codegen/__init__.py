"""Expressions, indices and parameters of a kernel as CUDA text."""
