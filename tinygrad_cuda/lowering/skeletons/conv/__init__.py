"""Convolutions: direct kernels, weight gradients, Winograd's transforms, and windows as columns."""
