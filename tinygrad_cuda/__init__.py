"""Graph-based autodiff for NVIDIA GPUs."""
