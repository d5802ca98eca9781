"""The Tensor and its free functions; methods bind the functions of these modules."""
