"""Linear algebra: products of matrices, their inverses and factors."""
