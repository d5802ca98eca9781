"""The NumPy backend: the definition that the others must agree with."""
