"""Attention and its gradients without the matrix of scores in memory."""
