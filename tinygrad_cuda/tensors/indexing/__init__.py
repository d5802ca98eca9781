"""Elements at positions: `x[key]`, choosing by other Tensors, and writing there."""
