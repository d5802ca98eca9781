"""Libraries beside generated kernels: optional packages, each bound in a file of its own."""
