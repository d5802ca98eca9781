"""The emulator: generated CUDA source compiled for the CPU and run with every access checked.

For correctness, never for speed.
"""
