"""Convolutions without im2col: direct kernels, weight gradients and Winograd's transforms."""
