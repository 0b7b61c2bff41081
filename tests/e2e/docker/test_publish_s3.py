"""A verified wheel into an S3 bucket with the command, and out of it with the pip line that the
command prints.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from farm.smoke.environment import make_environment
from tests.servers import moto

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret-for-tests"}
BUCKET = "wheels"


@pytest.fixture
def endpoint(monkeypatch) -> Iterator[str]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with moto.in_thread() as url:
        client = boto3.Session().client("s3", endpoint_url=url, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        objects = f"arn:aws:s3:::{BUCKET}/*"
        everybody = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": "s3:GetObject",
            "Resource": objects,
        }
        client.put_bucket_policy(
            Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [everybody]})
        )
        client.close()
        yield url


def test_publish_to_a_bucket_and_install_from_it(finished, endpoint, tmp_path):
    farm, report = finished
    url = f"s3://{BUCKET}/torch?endpoint_url={endpoint}&region=us-east-1&pages=slash"
    arguments = [
        "publish",
        report["wheel"],
        "--variant",
        "sm35-avx-py311",
        "--package",
        "canary",
        "--index",
        url,
    ]
    first = farm.run(*arguments)
    assert first.returncode == 0, first.stderr
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in first.stdout + first.stderr
    assert farm.run(*arguments).stdout.startswith("already there")
    line = shlex.split(first.stdout.splitlines()[-1])
    python = make_environment(tmp_path / "env", Path(sys.executable))
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | {
        "PIP_CONFIG_FILE": os.devnull
    }
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *line[1:]],
        check=True,
        env=environ,
        capture_output=True,
    )
    answer = subprocess.run(
        [python, "-c", "import canary; print(canary.__version__)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == "0.1.0+cu118.sm35.avx"


def test_an_absent_bucket_is_a_clear_error(finished, endpoint):
    farm, report = finished
    url = f"s3://absent/x?endpoint_url={endpoint}&region=us-east-1"
    result = farm.run(
        "publish",
        report["wheel"],
        "--variant",
        "sm35-avx-py311",
        "--package",
        "canary",
        "--index",
        url,
    )
    assert result.returncode == 2
    assert "absent" in result.stderr
