"""CloudFront around docs/servers/cloudfront.js: events as Amazon has them, an engine that knows ECMAScript 5.1 alone.

MuJS from Debian: CloudFront's runtime has all of 5.1 and parts of what came later, so that what runs here runs there.
"""

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.servers.threads import answered_by
from tests.servers.web import CONFIGURATIONS, unpacked

FUNCTION = CONFIGURATIONS / "cloudfront.js"
CALL = 'load("{function}");\nprint(JSON.stringify(handler(JSON.parse(scriptArgs[0]))));\n'


def engine(folder: Path) -> list[str | Path]:
    """The command that takes an event as an argument and prints what the function gives back.

    Raises:
        MissingError: There is no MuJS here.
    """
    program = unpacked("mujs", "usr/bin/mujs")
    script = folder / "call.js"
    script.write_text(CALL.format(function=FUNCTION))
    libraries = program.parents[1] / "lib" / "x86_64-linux-gnu"
    return ["env", f"LD_LIBRARY_PATH={libraries}", program, script]


@contextlib.contextmanager
def cloudfront(folder: Path, origin: str) -> Iterator[str]:
    """The function before a bucket at `origin`; gives the distribution's URL."""
    command = engine(folder)

    def call(kind: str, **event: Any) -> dict[str, Any]:
        text = json.dumps({"version": "1.0", "context": {"eventType": kind}, **event})
        done = subprocess.run([*command, text], capture_output=True, text=True, check=True, timeout=120)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    class Edge(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): {"value": value} for name, value in self.headers.items()}
            uri, _, _query = self.path.partition("?")
            request = {"method": "GET", "uri": uri, "querystring": {}, "headers": headers, "cookies": {}}
            request = call("viewer-request", request=request)
            assert "+" not in request["uri"], "S3 takes it for a space"
            try:
                answer = urllib.request.urlopen(f"{origin}{request['uri']}", timeout=120)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                data, status = answer.read(), answer.status
            kept = {"content-type", "content-encoding", "cache-control", "etag"}
            seen = {name.lower(): {"value": value} for name, value in answer.headers.items() if name.lower() in kept}
            response = call("viewer-response", request=request, response={"statusCode": status, "headers": seen})
            self.send_response(response["statusCode"])
            for name, value in response["headers"].items():
                self.send_header(name, value["value"])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with answered_by(Edge) as url:
        yield url
