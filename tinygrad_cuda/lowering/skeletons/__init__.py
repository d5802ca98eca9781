"""The loops of the kernels: each skeleton's generator stands beside its CUDA text."""
