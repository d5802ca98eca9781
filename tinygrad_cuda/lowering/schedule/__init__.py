"""Which nodes share a kernel, in which order kernels run, and where values lie."""
