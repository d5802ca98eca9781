"""Measurements: what the code reaches, beside its peers and the floor, on the same GPU."""
