"""Running lowered programs: what the GPU and the emulator share."""
