"""A full disk while something is prepared for an engine: the folder is named."""

import errno
import os
import re
import tempfile
from io import FileIO
from types import SimpleNamespace

import pytest

from farm.base.errors import InfrastructureError
from farm.engines import images
from farm.engines.base import Capacity, Job
from farm.engines.docker import DockerEngine


def test_a_full_disk_while_inputs_are_sent_is_reported(tmp_path, monkeypatch):
    removed = []
    container = SimpleNamespace(remove=lambda **_: removed.append(True))
    containers = SimpleNamespace(create=lambda *_, **__: container)
    engine = DockerEngine.__new__(DockerEngine)
    engine.client = SimpleNamespace(containers=containers)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FileIO("/dev/full", "w"))
    job = Job(
        name="job",
        image="image",
        command=("true",),
        inputs={"/in": tmp_path / "in"},
        output="/out",
        environment={},
        limits=Capacity(cpus=1, memory=1 << 30),
        timeout_s=1,
    )
    with pytest.raises(
        InfrastructureError, match=re.escape(f"{tmp_path}: No space left on device")
    ):
        engine.submit(job)
    assert removed


def test_a_full_disk_while_an_image_is_made_is_reported(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(images, "create_archive", full)
    with pytest.raises(
        InfrastructureError, match=re.escape(str(tmp_path)) + ".*: No space left on device"
    ):
        images._context_tar({"Dockerfile": "FROM scratch\n"}, {})
