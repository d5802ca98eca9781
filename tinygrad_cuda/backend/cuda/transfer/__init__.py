"""Arrays from host to device: pinned slots, asynchronous copies, prefetching."""
