"""The engine: cells hold pending values; a realization turns all of them into one plan."""
