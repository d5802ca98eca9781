"""Tools around training: checks of the machine."""
