"""docs/how-to/index-handbook.md, command by command as it stands there, against Ceph's gateway,
nginx and Amazon's client.
"""

import os
import re
import shutil
import stat
import subprocess
import sys

import boto3
import pytest

from tests.indexes.wheels import build_wheel
from tests.servers import web
from tests.servers.process import ROOT, MissingError, environment, free_port, running, wait_until

HANDBOOK = ROOT / "docs/how-to/index-handbook.md"
NGINX = (
    "pid {0}/pid;\nerror_log {0}/error.log;\nevents {{}}\nhttp {{\naccess_log "
    "off;\n{1}include {0}/conf.d/*.conf;\n}}\n"
)


def commands():
    """Every command of the page and its exit code, in order."""
    fenced = re.findall(
        r"^ *```console\n(.*?)^ *```$", HANDBOOK.read_text(), re.MULTILINE | re.DOTALL
    )
    lines = [line.strip() for block in fenced for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines), "one command a line, without output"
    for line in lines:
        code = re.search(r"\s# exit (\d+)$", line)
        yield line[2:], int(code[1]) if code else 0


def script(words):
    """A shell script that stops at the first command which ends otherwise than the page says."""
    for command, code in commands():
        text = command
        for old, new in words.items():
            text = text.replace(old, new)
        yield f"cat <<'COMMAND'\n$ {text}\nCOMMAND\n{text}\ncode=$?\n"
        yield f'[ $code = {code} ] || {{ echo "exit $code instead of {code}"; exit 1; }}\n'


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{text} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(ceph, tmp_path, require):
    """A folder with the programs that the page names, each a real one with a configuration for this
    test.
    """
    made = tmp_path / "bin"
    try:
        aws = environment("awscli", "awscli") / "aws"
        nginx = web.unpacked("nginx", "usr/sbin/nginx")
    except MissingError as error:
        require("a program of the handbook", error)
    program(made / "aws", f"exec {aws}")
    settings = " ".join(f"'{name}={value}'" for name, value in ceph.environ.items())
    program(made / "radosgw-admin", f"exec env {settings} {ceph.programs}/radosgw-admin")
    program(
        made / "nginx", f"exec {nginx} -c {tmp_path}/nginx/nginx.conf -e {tmp_path}/nginx/error.log"
    )
    program(made / "farm", f"exec {sys.executable} -m farm.cli.main")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "user"], check=True)
    program(
        made / "pip",
        f"exec {tmp_path}/user/bin/python -m pip --isolated --disable-pip-version-check",
    )
    return made


@pytest.fixture
def nginx(tools, tmp_path):
    """nginx as Debian starts it, with an empty folder of configurations."""
    folder = tmp_path / "nginx"
    (folder / "conf.d").mkdir(parents=True)
    paths = [
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    ]
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(user + NGINX.format(folder, "".join(paths)))
    with running([tools / "nginx", "-g", "daemon off;"], folder / "out") as process:
        wait_until("nginx", (folder / "pid").exists, processes=[process])
        yield folder


def test_every_command_of_the_handbook(ceph, nginx, tools, tmp_path):
    port, store = free_port(), ceph.http.removeprefix("http://")
    shutil.copytree(ROOT / "docs/servers", tmp_path / "checkout/docs/servers")
    configuration = tmp_path / "checkout/docs/servers/nginx-bucket.conf"
    words = {
        "127.0.0.1:7480": store,
        "wheels.example.org": f"127.0.0.1:{port}",
        "/etc/nginx": str(nginx),
        "/var/cache/nginx/wheels": str(tmp_path / "cache"),
    }
    text = configuration.read_text().replace("listen 80;", f"listen 127.0.0.1:{port};")
    for old in ("127.0.0.1:7480", "wheels.example.org", "/var/cache/nginx/wheels"):
        assert old in text, old
        text = text.replace(old, words[old])
    configuration.write_text(text.replace(f"server_name 127.0.0.1:{port}", "server_name localhost"))
    home = tmp_path / "home"
    for folder, version in (
        ("old-wheels", "1.0+cu118.sm35.avx"),
        ("rebuilt", "2.0+cu118.sm35.avx.1"),
    ):
        (home / folder).mkdir(parents=True)
        build_wheel(home / folder, f"canary-{version}-py3-none-any.whl")
    build_wheel(home / "old-wheels", "canary-2.0+cu118.sm35.avx-py3-none-any.whl")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_PAGER": "",
        "HOME": str(home),
    }
    env |= {
        "FARM": str(tmp_path / "checkout"),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", "".join(script(words))],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    log = done.stdout + done.stderr
    print(log)
    assert done.returncode == 0, log
    assert done.stdout.count("all as signed") == sum(
        "index verify" in line and not code for line, code in commands()
    )
    assert re.findall(r"Successfully installed (\S+)", done.stdout) == [
        "canary-2.0+cu118.sm35.avx",
        "canary-2.0+cu118.sm35.avx.1",
    ]
    keys = {"aws_access_key_id": "farm", "aws_secret_access_key": "change-this-secret"}
    client = boto3.client("s3", endpoint_url=ceph.http, region_name="us-east-1", **keys)
    objects = client.list_objects_v2(Bucket="wheels-backup", Prefix="whl/files/")["Contents"]
    left = sorted(each["Key"].rpartition("/")[2] for each in objects)
    kept = [
        f"canary-{version}-py3-none-any.whl"
        for version in ("1.0+cu118.sm35.avx", "2.0+cu118.sm35.avx.1")
    ]
    assert left == [f"{wheel}{end}" for wheel in kept for end in ("", ".metadata")], (
        "not the removed one"
    )
