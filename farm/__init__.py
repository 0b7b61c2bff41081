"""Builds, repairs, verifies, publishes and smoke-tests PyTorch wheels for hardware that upstream
left behind.
"""

__version__ = "0.1.0"
