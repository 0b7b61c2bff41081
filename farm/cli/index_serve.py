"""`farm index serve`: a directory index over HTTP, on the loopback."""

import argparse
from pathlib import Path

from farm.cli.index_options import add_index, index_url


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    parser.add_argument("--port", type=int, default=8080, help="0: a free one (default: 8080)")


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    import json

    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.index.backends import open_store
    from farm.index.directory import DirectoryStore
    from farm.index.serve import server

    store = open_store(index_url(args))
    if not isinstance(store, DirectoryStore):
        raise UsageError("only a directory can be served", hint="a bucket is served by its own server")
    with server(Path(store.root), args.port) as serving:
        url = f"http://{serving.server_address[0]!s}:{serving.server_port}/"
        if args.json:
            print(json.dumps({"url": url}), flush=True)
        else:
            show.say(f"serving {store.root} at {url} (Ctrl-C ends it)")
            for root in sorted(store.root.glob("whl/*/simple/index.html")):
                folder = root.parent.relative_to(store.root).as_posix()
                show.say(f"pip install --index-url {url}{folder}/ PROJECT")
        import sys

        # Now: a script that started this waits for the address, and `serve_forever` never returns.
        sys.stdout.flush()
        serving.serve_forever()
    return 0
