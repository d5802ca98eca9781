"""From a program's graph to launches of generated CUDA text, for any machine."""
