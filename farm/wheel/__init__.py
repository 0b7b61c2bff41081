"""Reads, repairs and verifies wheels. Knows wheels, nothing of the farm."""
