"""One queue over this machine's Docker engine and a stand-in for one on Windows Server: each plan is
built where its platform is. Nothing of this ran on Windows.
"""

import json

import pytest
import yaml

from farm import catalog
from tests.servers import windows_build
from tests.servers.windows_docker import windows_engine


@pytest.fixture
def windows_server(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    build = windows_build.Build(windows_build.make_wheel(folder))
    with windows_engine(build) as (url, engine):
        engine.registry |= {core.image for core in catalog.windows().servercore.values()}
        yield url, engine


# Which of the two is named first must not matter.
@pytest.mark.parametrize("order", [("local", "server2022"), ("server2022", "local")])
def test_each_plan_is_built_on_the_machine_of_its_platform(farm, windows_server, order):
    url, engine = windows_server
    server = {"engine": "docker", "platform": "windows", "url": url, "disk_gb": 200}
    runners = {"local": {"engine": "docker"}, "server2022": server}
    text = yaml.safe_dump({"runners": {name: runners[name] for name in order}}, sort_keys=False)
    (farm.project / "ci/runners.yaml").write_text(text)
    options = ("--on", "docker", "--no-smoke", "--detach", "--json")
    for_windows = farm.run("submit", *windows_build.VARIANT, *options)
    for_linux = farm.submit(*options)
    submitted = {
        "server2022": json.loads(for_windows.stdout)["run"],
        "local": json.loads(for_linux.stdout)["run"],
    }
    waited = farm.run("wait", *submitted.values())
    assert waited.returncode == 0, waited.stderr
    for runner, run in submitted.items():
        seen = farm.json("status", run)
        assert (seen["runner"], seen["result"]) == (runner, "success")
    tags = {path.stem.rpartition("_")[2] for path in farm.index.rglob("*.whl")}
    assert tags == {"amd64", "64"}
    assert len(engine.builds) == 1
