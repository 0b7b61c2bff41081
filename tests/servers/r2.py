"""docs/servers/r2-worker.js in Node, which has the web's Request, Response and streams, with R2's binding emulated.

With `FARM_MINIFLARE`, a folder where `npm install miniflare` ran, in Cloudflare's own runtime instead.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.servers.process import MissingError, free_port, serving
from tests.servers.web import CONFIGURATIONS

HARNESS = Path(__file__).with_name("r2-miniflare.mjs" if "FARM_MINIFLARE" in os.environ else "r2.mjs")


@contextlib.contextmanager
def r2_worker(folder: Path, origin: str) -> Iterator[str]:
    """The Worker before a bucket at `origin` that everybody may read; gives its URL.

    Raises:
        MissingError: There is no Node 18 or later here.
    """
    if not (node := shutil.which("node")):
        raise MissingError("there is no node here (Debian's package nodejs)")
    port = free_port()
    # The Worker has the extension that Cloudflare takes for a module; Node wants .mjs.
    worker = folder / "r2-worker.mjs"
    shutil.copyfile(CONFIGURATIONS / "r2-worker.js", worker)
    with serving([node, HARNESS, worker, str(port), origin], port, folder / "out") as url:
        yield url
