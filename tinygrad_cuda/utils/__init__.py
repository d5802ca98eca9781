"""Tools around training: checkpoints, metrics, checks of the machine."""
