"""What only Windows refuses, and a process that was killed; says what the farm makes of them."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

from farm.base.locks import retry_while_open
from farm.index.directory import DirectoryStore
from farm.run.dispatch import AlreadyDispatchingError, exclusive
from farm.run.run_owner import is_dead, this_process

target, part = Path("target"), Path("part")
target.write_bytes(b"old")
part.write_bytes(b"new")
with target.open("rb") as reader:
    try:
        part.replace(target)
    except PermissionError:
        print("refused while it is read")
    threading.Timer(0.5, reader.close).start()
    retry_while_open(part.replace, target)
print(target.read_bytes().decode())

# Readers have the object open under both of its names when the writer removes the temporary one.
folder = Path("index/.tmp")
folder.mkdir(parents=True)
store = DirectoryStore(Path("index"))
with store._written(b"object", None, None) as temporary:
    os.link(temporary, "index/object")
    readers = [path.open("rb") for path in (temporary, Path("index/object"))]
    for reader in readers:
        threading.Timer(0.5, reader.close).start()
print("left", [path.name for path in folder.iterdir()])
store.create("probe/held", b"1", content_type="text/plain")
reader = Path("index/probe/held").open("rb")  # noqa: SIM115
threading.Timer(0.5, reader.close).start()
store.discard("probe/held")
print("discarded", store.get("probe/held"))

ask = (
    "from farm.run.journal import this_process; print(this_process().to_json(), flush=True); "
    "input()"
)
child = subprocess.Popen([sys.executable, "-c", ask], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert child.stdout
other = type(this_process()).from_json(child.stdout.readline().decode())
print("alive", not is_dead(other), not is_dead(this_process()))
print("another of its number", is_dead(replace(this_process(), start=other.start)))
child.kill()
child.communicate()
print("killed", is_dead(other))

with exclusive(Path(), 0.0):
    try:
        with exclusive(Path(), 0.0):
            print("two dispatchers")
    except AlreadyDispatchingError:
        print("one dispatcher")
with exclusive(Path(), 0.0):
    print("free again", os.name)
