"""The log of a job, sent while it runs."""

from __future__ import annotations

import os
import threading
import urllib.error

from .store import put

CHUNK = 4 << 20
SPOOL = 64 << 20  # what is held while the store is away
LINGER_S = 5.0  # for what is in the pipe when the command has ended


class Log(threading.Thread):
    """Ships the command's output in numbered chunks; what does not fit is dropped, and the log's last line says so."""

    def __init__(self, pipe: int, urls: list[str], interval: float) -> None:
        super().__init__(daemon=True)
        self.pipe, self.urls, self.interval = pipe, urls, interval
        self.buffer, self.lock, self.ended = bytearray(), threading.Condition(), False
        self.left = CHUNK * len(urls)
        self.lost = 0
        self.problem: str | None = None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def close(self) -> None:
        """The command has ended. Something that it left behind may hold the pipe for ever: nothing waits for it."""
        self.reader.join(LINGER_S)
        with self.lock:
            self.ended = True
            self.lock.notify_all()

    def read(self) -> None:
        while True:
            piece = os.read(self.pipe, 65536)
            with self.lock:
                # Reading never stops, else the command would block on a full pipe while the store is away.
                kept = piece[: max(0, min(self.left, SPOOL - len(self.buffer)))]
                self.left -= len(kept)
                self.lost += len(piece) - len(kept)
                self.buffer += kept
                if not piece:
                    self.ended = True
                if not piece or len(self.buffer) >= CHUNK:
                    self.lock.notify_all()
            if not piece:
                return

    def run(self) -> None:
        try:
            for number, url in enumerate(self.urls):
                with self.lock:
                    self.lock.wait_for(lambda: self.ended or len(self.buffer) >= CHUNK, timeout=self.interval)
                    while not self.buffer and not self.ended:
                        self.lock.wait(timeout=self.interval)
                    # An object is written once: the last URL waits for the end, so that it can hold all that is left.
                    last = number == len(self.urls) - 1
                    if last:
                        self.lock.wait_for(lambda: self.ended)
                    data = bytes(self.buffer[:CHUNK])
                    del self.buffer[: len(data)]
                    if last:
                        self.lost += len(self.buffer)
                        self.buffer.clear()
                    finished = self.ended and not self.buffer
                    if finished and self.lost:
                        data += f"\n[{self.lost} bytes of the log are lost: too long, or the store was away]\n".encode()
                if data:
                    put(url, data)
                if finished:
                    return
        except (OSError, urllib.error.URLError) as error:
            self.problem = str(error)
