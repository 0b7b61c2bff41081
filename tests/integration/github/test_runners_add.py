"""`farm runners add` against the fake of GitHub in fake.py; what it prints is checked by the shells' own parsers."""

import json
import subprocess

import pytest

from farm.cli.main import main
from farm.engines.github_settings import site_of
from tests.integration.github.fake import REPOSITORY
from tests.schemas import valid

SECRET = "AABF3JGZDX3P5PMEXLND6TS6FCWO6"


@pytest.fixture
def add(on_the_fake, capsys):
    project = on_the_fake()

    def run(*words):
        code = main(["--project", str(project), "runners", "add", *words])
        return code, *capsys.readouterr()

    return run


def parses(script):
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_runner_of_the_file_is_registered_with_its_own_labels(fake, add):
    code, script, said = add("k40")
    assert code == 0
    parses(script)
    config = f"./config.sh --url {fake.url}/{REPOSITORY} --name k40 --labels "
    labels = "farm-smoke,gpu,cpu,sm35,kepler,legacy,sse41,avx"  # the runner gives itself the others
    secret = f"ACTIONS_RUNNER_INPUT_TOKEN={SECRET}"  # not an argument: `ps` shows those
    assert f"{secret} runuser -u farm-runner -- {config}{labels} --unattended --replace\n" in script
    assert "useradd --create-home farm-runner" in script  # a smoke host needs no Docker
    assert "actions.runner.owner-farm.k40.service.d/farm.conf" in script
    assert "on k40" in said
    assert SECRET not in said


def test_a_windows_runner_is_a_service(add):
    code, script, _ = add("windows-build")
    assert code == 0
    assert "Set-Location -LiteralPath 'C:\\actions-runner'" in script
    assert f"$env:ACTIONS_RUNNER_INPUT_TOKEN = '{SECRET}'" in script
    assert "./config.cmd --url" in script
    assert script.rstrip().endswith('--runasservice --windowslogonaccount "NT AUTHORITY\\NETWORK SERVICE"')


def test_an_ephemeral_one_takes_one_job(fake, add):
    code, out, _ = add("k40", "--ephemeral", "--json")
    assert code == 0
    assert valid("runners", out)["commands"].endswith("ACTIONS_RUNNER_INPUT_JITCONFIG=eyJhIjoxfQ== ./run.sh\n")
    assert [runner["name"] for runner in fake.runners] == ["k40"]
    assert fake.sent("POST", "registration-token") == []


def test_a_token_that_may_not_is_told_which_right_it_lacks(fake, add):
    fake.scopes = {"read", "write"}
    code, out, said = add("k40")
    assert (code, out) == (2, "")
    assert "administration=write" in said


@pytest.mark.parametrize("secret", ["a; rm -rf /", "$(id)", "", "a\nb"])
def test_a_hostile_answer_reaches_no_shell(fake, add, secret):
    fake.faults["POST registration-token"] = [(201, {}, json.dumps({"token": secret}).encode())]
    code, out, said = add("k40")
    assert (code, out) == (9, "")
    assert "odd characters" in said


@pytest.mark.parametrize("words", [["local"], ["a;b"], ["new"], []])
def test_what_cannot_be_registered_is_a_usage_error(fake, add, words):
    try:
        code = add(*words)[0]
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert fake.sent("POST", "runners") == []


def test_the_pages_of_a_github_lie_beside_its_api():
    assert site_of("https://api.github.com") == "https://github.com"
    assert site_of("https://github.example.org/api/v3") == "https://github.example.org"
