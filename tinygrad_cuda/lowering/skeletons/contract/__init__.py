"""Matrix products by tiles."""
