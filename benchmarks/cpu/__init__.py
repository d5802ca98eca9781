"""The `cpu` device beside PyTorch at one thread: `python -m benchmarks.cpu`."""
