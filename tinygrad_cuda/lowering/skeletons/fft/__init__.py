"""Discrete Fourier transforms of rows, each in the shared memory of one block."""
