"""Plans as CUDA graphs: capture, update, replay and dependent launches."""
