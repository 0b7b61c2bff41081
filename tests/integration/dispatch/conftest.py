import logging

import boto3
import pytest
from moto.server import ThreadedMotoServer

from farm.engines.swarm import Exchange


@pytest.fixture
def exchange(monkeypatch, tmp_path):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "secret-for-tests",
    }.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket="exchange")
    client.close()
    # Servers of one process share their content, so each test has a prefix of its own.
    yield Exchange(
        f"s3://exchange/{tmp_path.name}?endpoint_url=http://{host}:{port}&region=us-east-1"
    )
    server.stop()
