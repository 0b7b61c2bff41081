"""What every other package may use: errors, text, YAML, hashes, locks, processes, temporary folders."""
