"""Errors, settings, dtypes and shape rules: what every other part stands on."""
