"""Web servers from Debian's packages, unpacked and not installed, with the configurations of
docs/servers.
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers.process import ROOT, TOOLS, MissingError, apt_get, free_port, serving

CONFIGURATIONS = ROOT / "docs" / "servers"


def unpacked(package: str, program: str) -> Path:
    """The program of a Debian package; MissingError where it cannot be had."""
    found = TOOLS / package / program
    if not found.exists():
        with tempfile.TemporaryDirectory(
            dir=_made(TOOLS)
        ) as folder:  # other test processes may be at it too
            archive = _made(Path(folder) / "archive" / "partial").parent
            options = ["--download-only", "--reinstall", "-o", f"Dir::Cache::archives={archive}"]
            if wrong := apt_get(*options, "-o", "Debug::NoLocking=1", package):
                raise MissingError(f"{package}: {wrong}")
            root = Path(folder) / "root"
            for each in sorted(archive.glob("*.deb")):
                subprocess.run(["dpkg", "-x", each, root], check=True)
            with contextlib.suppress(OSError):  # somebody else was faster
                root.rename(TOOLS / package)
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def nginx(folder: Path, configuration: str, **replaced: str) -> Iterator[str]:
    """nginx with a configuration of docs/servers, in which words are replaced; gives its URL."""
    program = unpacked("nginx", "usr/sbin/nginx")
    port, text = free_port(), (CONFIGURATIONS / configuration).read_text()
    for old, new in {"listen 80;": f"listen 127.0.0.1:{port};", **replaced}.items():
        assert old in text, old
        text = text.replace(old, new)
    for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    paths = "".join(
        f"{module}_temp_path {folder}/{name};\n"
        for module, name in {
            "client_body": "body",
            "proxy": "proxy",
            "fastcgi": "fastcgi",
            "uwsgi": "uwsgi",
        }.items()
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log "
        f"{folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\nscgi_temp_path {folder}/scgi;\n{paths}{text}\n}}\n"
    )
    with serving(
        [program, "-c", folder / "nginx.conf", "-e", folder / "error.log"], port, folder / "out"
    ) as url:
        yield url


@contextlib.contextmanager
def caddy(folder: Path, root: Path) -> Iterator[str]:
    """Caddy with docs/servers/Caddyfile before a folder; gives its URL."""
    program = unpacked("caddy", "usr/bin/caddy")
    port, text = free_port(), (CONFIGURATIONS / "Caddyfile").read_text()
    text = re.sub(r"^wheels\.example\.org", f"http://127.0.0.1:{port}", text, flags=re.MULTILINE)
    text = "{\n\tadmin off\n\tauto_https off\n}\n" + text.replace("/srv/wheels", str(root))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Caddyfile").write_text(text)
    command = [program, "run", "--adapter", "caddyfile", "--config", folder / "Caddyfile"]
    with serving(command, port, folder / "out", env={"HOME": str(folder)}) as url:
        yield url


APACHE = """\
ServerRoot {folder}
DefaultRuntimeDir {folder}
PidFile {folder}/pid
ErrorLog {folder}/error.log
TypesConfig {folder}/mime.types
Listen 127.0.0.1:{port}
User nobody
Group nogroup
"""
APACHE_MODULES = "alias authz_core deflate dir filter headers mime mpm_event rewrite setenvif"


@contextlib.contextmanager
def apache(folder: Path, root: Path) -> Iterator[str]:
    """Apache httpd with docs/servers/apache.conf before a folder that nobody (the user) may read;
    gives its URL.
    """
    tree = unpacked("apache2-bin", "usr/sbin/apache2").parents[2]
    port, text = free_port(), (CONFIGURATIONS / "apache.conf").read_text()
    modules = "".join(
        f"LoadModule {name}_module {tree}/usr/lib/apache2/modules/mod_{name}.so\n"
        for name in APACHE_MODULES.split()
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mime.types").write_text("text/html html\napplication/json json\n")
    (folder / "apache.conf").write_text(
        modules + APACHE.format(folder=folder, port=port)
        + text.replace("*:80", f"127.0.0.1:{port}").replace("/srv/wheels", str(root))
    )  # fmt: skip
    command = [tree / "usr/sbin/apache2", "-D", "FOREGROUND", "-f", folder / "apache.conf"]
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    with serving(command, port, folder / "out", env={"LD_LIBRARY_PATH": str(libraries)}) as url:
        yield url
