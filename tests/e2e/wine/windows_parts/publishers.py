"""Publishes wheels into a folder: `publishers.py INDEX WHEEL…`. Says so when it is ready, and
starts at a line.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from farm.index.publish import publish
from farm.index.store_urls import open_store

index, *wheels = sys.argv[1:]
store = open_store(index)
print("ready", flush=True)
sys.stdin.readline()
for wheel in map(Path, wheels):
    now = datetime.now(UTC)
    publish(store, wheel, group="sm35-avx", upload_time=now, provenance={})
    print(wheel.name, flush=True)
