"""Backends: a program of nodes goes in, storages come out, on cpu, cuda or emu."""
