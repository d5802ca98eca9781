"""What a compiled function reads besides its arguments, and whether that is as it was."""
