"""Errors, text, YAML, hashes, locks, processes, temporary folders."""
