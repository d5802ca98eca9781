"""Errors, settings, dtypes and shape rules: what every other part stands on."""

version = "0.1.0"
