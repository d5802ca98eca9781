"""Hand-written kernels that show what generated text can reach, and what graph edges allow."""
