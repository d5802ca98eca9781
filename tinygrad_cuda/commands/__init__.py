"""The subcommands of `python -m tinygrad_cuda`, a file each; the table is in `__main__`.

A file has `arguments(parser)`, which adds its options, and `run(options)`, which gives the exit
status. It is imported when its subcommand is asked for.
"""
