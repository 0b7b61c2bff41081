"""report.py: what is sent back from a failed build on Windows holds no secret."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from farm.base import causes, failures

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCY",
    "MY_OWN_VARIABLE": "hunter2-hunter2",
    "FARM_INDEX_URL": "https://me:pass-word@wheels.example.org/simple",
    "FARM_ARCHIVES": "https://who:other-word@mirror.example.org/cuda",
    "Regular": "(a+)+$[x]\\1",
}
LINES = {
    "the value of a variable": "sccache: key wJalrXUtnFEMI/K7MDENG+bPxRfiCY refused",
    "in another case": "HUNTER2-HUNTER2",
    "a part of a URL": "Looking in indexes: https://me:pass-word@wheels.example.org/simple/torch",
    "only the password's URL": "https://who:other-word@other.example.org/x.zip",
    "a signed query": "GET https://bucket/x?X-Amz-Signature=0123abcd&sig=zz-signed-zz&part=2",
    "a token of GitHub": "remote: ghp_0123456789abcdefghij0123456789abcdef",
    "a header": "Authorization: Bearer abcdefgh12345678",
    "a regular expression": "value (a+)+$[x]\\1 end",
    "a private key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANB\n-----END PRIVATE KEY-----",
    "the user's folder": "C:\\Users\\Erika\\AppData\\x.txt and erika",
    "the machine": "ERIKAS-PC\\erika",
}  # fmt: skip
GONE = (
    "wJalrXUtnFEMI", "unter2", "UNTER2", "pass-word", "other-word", "0123abcd", "zz-signed", "ghp_0123", "abcdefgh1234",
    "(a+)+$", "MIIEvQ", "Erika", "erika", "ERIKA",
)  # fmt: skip


@pytest.fixture
def report(root, tmp_path):
    job = tmp_path / "job"
    job.mkdir()
    shutil.copy(root / "dockerfiles/scripts/report.py", job)
    shutil.copy(causes.__file__, job)
    (job / causes.PATTERNS).write_text(failures.document())

    def run(files, **environment):
        words = []
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            words.append(f"{name}={tmp_path / name}")
        target = tmp_path / "farm-report.zip"
        base = {
            "PATH": os.environ["PATH"],
            "NUMBER_OF_PROCESSORS": "16",
            "SystemRoot": "C:\\windows",
        }
        command = [
            sys.executable,
            job / "report.py",
            target,
            *words,
            "absent.log=/nowhere/x",
        ]
        done = subprocess.run(
            command, env=base | environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        with zipfile.ZipFile(target) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}

    return run


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_no_secret_ends_in_it(report, encoding):
    text = "\n".join(LINES.values()) + "\nkept: Jürgen, C:\\windows, 16 cores, part=2, nvcc fatal\n"
    who = {"USERNAME": "erika", "USERPROFILE": "C:\\Users\\Erika", "COMPUTERNAME": "ERIKAS-PC"}
    made = report({"build.log": text.encode(encoding)}, **SECRETS, **who)
    everything = "\n".join(made.values())
    assert [word for word in GONE if word in everything] == []
    assert "kept: Jürgen, C:\\windows, 16 cores, part=2, nvcc fatal" in made["build.log"]
    assert "%USERPROFILE%\\AppData\\x.txt and [user]" in made["build.log"]
    assert "[AWS_SECRET_ACCESS_KEY] refused" in made["build.log"]


def test_standard_variables_of_the_machine_are_kept(report):
    """Only whole names are taken out: SystemRoot is not a user, though a user is called root."""
    made = report(
        {"a.txt": b"SystemRoot root_dir groot C:/users/root/x\xff"}, USERNAME="root", OTHER="short"
    )
    assert made["a.txt"].startswith("SystemRoot ")
    assert "groot" in made["a.txt"]
    assert "users/[user]/x" in made["a.txt"]


def test_values_in_the_plan_are_not_treated_as_secrets(report):
    """A job has a VARIANT, a hosted runner GITHUB_JOB=canary and RUNNER_OS=Windows; a user is
    called farm.
    """
    plan = '{"windows": {}, "package": "canary", "variant": "sm35-avx-py311", "home": "C:/farm/x"}'
    log = "farm: canary 0.1.0 for sm35-avx-py311 on Windows; configure; hunter2-own"
    given = {
        "VARIANT": "sm35-avx-py311",
        "GITHUB_JOB": "canary",
        "RUNNER_OS": "Windows",
        "GITHUB_ACTION": "configure",
    }
    made = report(
        {"plan.json": plan.encode(), "build.log": log.encode()},
        **given,
        USERNAME="farm",
        OWN="hunter2-own",
    )
    assert made["plan.json"] == plan
    assert made["build.log"] == "farm: canary 0.1.0 for sm35-avx-py311 on Windows; configure; [OWN]"


def test_the_first_error_its_cause_and_what_to_do_are_in_it(report):
    log = (
        "farm: step build\nC:\\Users\\Erika\\a.cu\nFAILED: a.obj\n"
        "LINK : fatal error LNK1248: image size (80A3C000) exceeds maximum allowable size\n"
    )
    made = report({"build.log": log.encode()}, USERNAME="erika")
    assert "LNK1248" in made["cause.txt"]
    assert "cause: " in made["cause.txt"]
    assert "what to do: " in made["cause.txt"]


def test_a_build_in_which_no_tool_failed_has_no_cause(report):
    assert list(report({"build.log": b"farm: step build\nfarm: done: a.whl\n"})) == ["build.log"]
