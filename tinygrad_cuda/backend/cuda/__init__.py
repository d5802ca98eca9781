"""The GPU: driver, compiler, memory pool, graphs and transfers."""
