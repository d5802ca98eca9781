"""The graph: immutable nodes, the op table, gradients, rewriting and scheduling."""
