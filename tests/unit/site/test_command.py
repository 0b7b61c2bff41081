"""`farm site build`: into the index of ci/farm.yaml, or into the one that --index names."""

import json
from pathlib import Path

import yaml

from farm.cli.main import main
from farm.index.backends import open_store
from farm.index.check import check

ROOT = Path(__file__).parents[3]


def test_an_index_that_is_named_gets_the_pages_and_its_own_addresses(tmp_path, capsys):
    (tmp_path / "project/ci").mkdir(parents=True)
    (tmp_path / "project/ci/farm.yaml").write_text("index_public_url: https://wheels.example.org\n")
    matrix = yaml.safe_load((ROOT / "ci/matrix.yaml").read_text())
    small = matrix | {"channels": {name: matrix["channels"][name] for name in ("main", "debian-2.6.0")}}
    (tmp_path / "project/ci/matrix.yaml").write_text(yaml.safe_dump(small))
    command = ["--project", str(tmp_path / "project"), "site", "build", "--json", "--index"]
    assert main([*command, str(tmp_path / "other")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["where"] == (tmp_path / "other/index.html").as_uri()
    assert not (tmp_path / "project/artifacts/index").exists()
    page = (tmp_path / "other/index.html").read_text()
    assert (tmp_path / "other").as_uri() in page
    assert "wheels.example.org" not in page, "that is where the project's own index is seen"
    assert check(open_store(str(tmp_path / "other"))) == []
    assert main([*command, (tmp_path / "other").as_uri()]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []
    assert main([*command, "ftp://x"]) == 2
