"""What one answer of a foreign server may cost: bytes and seconds."""

import time

from farm.base.errors import InfrastructureError

GRACE_S = 120
"""Seconds that any answer may take."""
MIN_BYTES_PER_S = 32 * 1024
"""What follows must arrive at this rate on average."""


class Budget:
    """Counts the bytes of one answer while it is read.

    Args:
        where: The address, for messages.
        max_bytes: Of an answer with more it is an error.
    """

    def __init__(self, where: str, max_bytes: int) -> None:
        self.where = where
        self.max_bytes = max_bytes
        self.spent = 0
        self.start = time.monotonic()

    def spend(self, count: int) -> None:
        """Count bytes that arrived.

        Raises:
            InfrastructureError: The answer is too long or too slow.
        """
        self.spent += count
        if self.spent > self.max_bytes:
            raise InfrastructureError(
                f"{self.where} is over {self.max_bytes} bytes: no page or record"
            )
        seconds = time.monotonic() - self.start
        if seconds > GRACE_S + self.spent / MIN_BYTES_PER_S:
            raise InfrastructureError(
                f"{self.where}: too slow: {self.spent} bytes in {seconds:.0f} s",
                hint="run it again, or ask the server's owner",
            )
