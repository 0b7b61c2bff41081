"""The workflows hold together: what GitHub would only say when a run is under way."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from farm.cli.main import main, parser
from farm.cli.selection import each_build, selectors_of
from farm.engines.github import ADOPT, OUTPUT, WORK, WORKFLOW
from farm.index.store_urls import open_store
from farm.plan.matrix import load_matrix
from farm.plan.resolve import resolve
from farm.plan.settings import load_github, load_settings
from farm.plan.workflow_matrix import workflow_matrix
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.unit.workflows.conftest import ACTIONS, ROOT, Workflow, farm_commands
from tests.unit.workflows.conftest import WORKFLOWS as FILES
from tools import workflow_plan

BIN = Path(sys.executable).parent
EXAMPLE = ROOT / "farm/cli/example"
VALUES = {
    "PLATFORM": "linux",
    "VARIANT": "sm35-avx-py311",
    "PACKAGE": "canary",
    "CHANNEL": "kepler-2.0.1",
}


@pytest.fixture
def starter(tmp_path):
    """The workflow that `farm init` writes."""
    assert main(["init", str(tmp_path / "starter")]) == 0
    (made,) = (tmp_path / "starter/.github/workflows").iterdir()
    return Workflow(made)


def run(*command):
    return subprocess.run(
        [*map(str, command)], capture_output=True, encoding="utf-8", timeout=120, check=False
    )


def zizmor(where):
    return run(
        BIN / "zizmor",
        "--offline",
        "--no-progress",
        "--persona",
        "auditor",
        "--format",
        "plain",
        where,
    )


def test_zizmor_finds_nothing(starter):
    for where in (ROOT / ".github", starter.path):
        done = zizmor(where)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "No findings to report" in done.stdout


def test_files_have_the_published_shape(tmp_path):
    schema = [BIN / "check-jsonschema", "--builtin-schema"]
    assert run(*schema, "vendor.github-workflows", *FILES).returncode == 0
    assert run(*schema, "vendor.github-actions", *ACTIONS).returncode == 0
    bad = tmp_path / "bad.yml"
    bad.write_text(FILES[0].read_text().replace("timeout-minutes", "timeout-minuets"))
    assert run(*schema, "vendor.github-workflows", bad).returncode != 0


def test_needs_and_outputs_exist(workflow):
    for name, job in workflow.jobs.items():
        needs = job.get("needs", [])
        needs = [needs] if isinstance(needs, str) else needs
        assert set(needs) <= set(workflow.jobs) - {name}
        used = re.findall(r"needs\.([\w-]+)\.(outputs\.([\w-]+)|result)", json.dumps(job))
        for other, _, output in used:
            assert other in needs, f"{name} uses needs.{other} without needing it"
            assert not output or output in workflow.jobs[other]["outputs"], (
                f"{name}: {other} has no output {output}"
            )
        for output in job.get("outputs", {}).values():
            step, key = re.fullmatch(
                r"\$\{\{ steps\.([\w-]+)\.outputs\.([\w-]+) \}\}", output
            ).groups()
            assert step in {s.get("id") for s in job["steps"]}
            assert key in {
                "build",
                "smoke",
                "labels",
            }  # what tools/workflow_plan.py prints, see below


def test_inputs_exist(workflow):
    declared = set((workflow.on.get("workflow_dispatch") or {}).get("inputs", {}))
    assert set(re.findall(r"(?<!/)\binputs\.(\w+)", workflow.text)) == declared
    assert len(declared) <= 25


def test_matrix_keys_exist(workflow):
    matrix, labels = load_matrix(ROOT), load_github(ROOT)
    builds = matrix.builds("kepler-2.0.1")
    made = workflow_matrix(
        matrix, builds, lambda job, b: labels.runs_on(job, b.variant, b.platform)
    )
    for name, job in workflow.jobs.items():
        used = set(re.findall(r"\$\{\{ matrix\.(\w+) \}\}", json.dumps(job)))
        if not used or isinstance(job["strategy"]["matrix"], dict):  # a list of its own
            continue
        kind = re.fullmatch(
            r"\$\{\{ fromJSON\(needs\.plan\.outputs\.(\w+)\) \}\}", job["strategy"]["matrix"]
        )[1]
        assert used <= set(made[kind][0][0]), name
        assert job["strategy"]["fail-fast"] is False
        assert (
            f"{name} ${{{{ matrix.name }}}}" == job["name"]
        )  # by which tools/workflow_summary.py finds it


NO_FARM_COMMAND = {"catalogue.yml", "distributions.yml", "release.yml", "test.yml"}


def test_every_farm_command_parses(workflow):
    count = 0
    for job, step in workflow.steps():
        for words in farm_commands(step.get("run", "")):
            variables = {name for word in words for name in re.findall(r"\$(\w+)", word)}
            given = workflow.environment(job, step)
            assert variables <= given | {"RUNNER_TEMP", "built"}, (job, words)
            assert "--variant" not in words or ("$CUDA" in words) == ("CUDA" in given), (job, words)
            filled = [
                re.sub(r"\$(\w+)", lambda m: VALUES.get(m[1], "value"), word) for word in words
            ]
            try:
                parser().parse_args(filled)
            except SystemExit:
                pytest.fail(f"{workflow.path.name}, {job}: farm {' '.join(filled)}")
            count += 1
    assert count or workflow.path.name in NO_FARM_COMMAND
    assert count == len(re.findall(r"^ +farm ", workflow.text, re.MULTILINE))


def test_scripts_are_shell_without_expressions(workflow):
    for _, step in workflow.steps():
        if "run" in step:
            assert "${{" not in step["run"]
            assert run("bash", "-n", "-c", step["run"]).returncode == 0


def test_actions_are_pinned(workflow):
    pinned = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
    for line in workflow.text.splitlines():
        if "uses: $/" in line:
            assert (ROOT / line.split("uses: $/")[1].strip() / "action.yml").is_file()
        elif "uses:" in line:
            assert pinned.search(line), line
    hashes = {}
    for path in FILES:
        for action, sha in re.findall(r"uses: ([\w./-]+)@(\w+)", path.read_text()):
            assert hashes.setdefault(action, sha) == sha, f"{action} is pinned twice"


def test_rights_and_limits(workflow):
    assert workflow.data["permissions"] == {}
    assert workflow.data["concurrency"]["group"]
    for name, job in workflow.jobs.items():
        assert job["timeout-minutes"], name
        rights = dict(job["permissions"])
        assert rights.pop("contents") == ("write" if name in ("refresh", "announce") else "read")
        allowed = {
            "publish": {"id-token": "write"},
            "upkeep": {"id-token": "write"},
            "sign": {"id-token": "write"},
            "summary": {"actions": "read"},
            "upload": {"id-token": "write", "attestations": "write"},
            "image": {"packages": "write"},
            "refresh": {"pull-requests": "write"},  # GitHub's own runner, no pull request's code
        }
        assert rights == allowed.get(name, {}), name
        if "id-token" in rights:
            release = name in ("publish", "upload")
            assert job["environment"].split()[0] == ("release" if release else "index")
        for step in job["steps"]:
            if "actions/checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_a_secret_reaches_the_step_that_signs_alone(workflow):
    """Not the whole job, which installs packages of the Python index as well."""
    signs = re.compile(r"^ *farm index sign$", re.MULTILINE)
    steps = [step for _, step in workflow.steps() if "secrets." in json.dumps(step)]
    assert workflow.text.count("secrets.") == sum(
        json.dumps(step["env"]).count("secrets.") for step in steps
    )
    for step in steps:
        assert signs.search(step["run"]), step["name"]
        assert re.findall(r"^ *(farm \w+ \w+)", step["run"], re.MULTILINE) == ["farm index sign"]


def test_the_starter_has_limits_fences_and_no_rights(starter):
    assert (starter.data["permissions"], starter.data["concurrency"]["group"]) == ({}, "wheels")
    rights = {
        "plan": {"contents": "read", "actions": "read"},
        "publish": {"contents": "read", "id-token": "write"},
        "pages": {"pages": "write", "id-token": "write"},
    }
    for name, job in starter.jobs.items():
        assert job["timeout-minutes"] <= 360
        assert job["permissions"] == rights.get(name, {"contents": "read"})
    for command in ("farm submit", "farm publish", "farm smoke"):
        (script,) = [step["run"] for _, step in starter.steps() if command in step.get("run", "")]
        assert 0 < script.index('echo "::stop-commands::$fence"') < script.index(command)
    installs = starter.text.count('pipx install "$FARM"')
    assert starter.text.count("pipx install") == len(starter.jobs.keys() - {"pages"}) == installs


def test_a_job_of_the_starter_that_runs_what_was_built_has_no_credentials(starter):
    for name in ("build", "smoke"):
        assert "id-token" not in starter.jobs[name]["permissions"]
        assert "credentials" not in json.dumps(
            [step.get("uses", "") for step in starter.jobs[name]["steps"]]
        )


def installed(folder, monkeypatch, record):
    """The farm as pip installs it: its metadata with PEP 610's record."""
    info = folder / "torch_farm-9.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-farm\nVersion: 9.0\n")
    if record is not None:
        (info / "direct_url.json").write_text(
            record if isinstance(record, str) else json.dumps(record)
        )
    monkeypatch.syspath_prepend(str(folder))


COMMIT, SHA256 = "c" * 40, "5" * 64
GIT, WHEEL = (
    "https://git.example.org/me/farm.git",
    "https://files.example.org/torch_farm-9.0-py3-none-any.whl",
)


@pytest.mark.parametrize(
    ("record", "written"),
    [
        ({"url": GIT, "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, f"git+{GIT}@{COMMIT}"),
        ({"url": "ssh://git@git.example.org/farm", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
         f"git+ssh://git@git.example.org/farm@{COMMIT}"),
        ({"url": WHEEL, "archive_info": {"hashes": {"sha256": SHA256}}}, f"torch-farm @ {WHEEL}#sha256={SHA256}"),
        ({"url": WHEEL, "archive_info": {}}, ""),
        ({"url": "https://me:password@example.org/farm", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, ""),
        ({"url": "file:///home/me/farm", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, ""),
        ({"url": GIT + '"\n  evil: "', "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, ""),
        ({"url": "file:///nowhere", "dir_info": {}}, ""),
        ("[", ""),
        (None, ""),  # from an index, whose wheel may be anybody's
    ],
)  # fmt: skip
def test_the_starter_installs_the_farm_that_wrote_it(
    tmp_path, monkeypatch, capsys, record, written
):
    installed(tmp_path / "site", monkeypatch, record)
    assert main(["init", str(tmp_path / "mine")]) == 0
    made = Workflow(tmp_path / "mine/.github/workflows/wheels.yml")
    assert made.data["env"] == {"FARM": written}
    assert ("write into FARM" in capsys.readouterr().out) == (not written)


def test_the_starter_of_a_clone_installs_its_commit(tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (
        ["init", "-q"],
        ["remote", "add", "origin", GIT],
        ["commit", "-qm", "x", "--allow-empty"],
    ):
        clone.mkdir(exist_ok=True)
        assert run(*git, *command).returncode == 0
    installed(
        tmp_path / "site", monkeypatch, {"url": clone.as_uri(), "dir_info": {"editable": True}}
    )
    commit = run(*git, "rev-parse", "HEAD").stdout.strip()
    assert main(["init", str(tmp_path / "a")]) == 0
    assert Workflow(tmp_path / "a/.github/workflows/wheels.yml").data["env"] == {
        "FARM": f"git+{GIT}@{commit}"
    }
    (clone / "changed").touch()
    assert run(*git, "add", "changed").returncode == 0
    assert main(["init", str(tmp_path / "b")]) == 0
    assert Workflow(tmp_path / "b/.github/workflows/wheels.yml").data["env"] == {"FARM": ""}


def project(folder, channels):
    """A project with the channels of that name, all as the example's."""
    shutil.copytree(EXAMPLE / "ci", folder / "ci")
    shutil.copytree(EXAMPLE / "recipes", folder / "recipes")
    matrix = yaml.safe_load((folder / "ci/matrix.yaml").read_text())
    [channel] = matrix["channels"].values()
    matrix["channels"] = {name: dict(channel) for name in channels}
    (folder / "ci/matrix.yaml").write_text(json.dumps(matrix))
    return folder


@pytest.mark.parametrize(
    ("channels", "words"), [(["lab"], []), (["lab", "other"], ["--channel", "lab"])]
)
def test_a_project_that_is_there_gets_the_workflow_for_its_channel(tmp_path, channels, words):
    folder = project(tmp_path / "mine", channels)
    before = sorted(folder.rglob("*"))
    assert main(["init", "--github", str(folder), *words]) == 0
    made = Workflow(folder / ".github/workflows/wheels.yml")
    files = {path for path in set(folder.rglob("*")) - set(before) if path.is_file()}
    assert files == {made.path}
    named = set(re.findall(r"--channel (\S+)", made.text))
    assert named == {"lab"}
    assert main(["init", "--github", str(folder), *words]) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--github", "empty"], "is no project"),
        (["--github", "two"], "has 2 channels of its own"),
        (["--github", "two", "--channel", "three"], "unknown channel 'three'"),
        (["empty", "--channel", "lab"], "--channel is of --github"),
    ],
)
def test_a_workflow_for_no_channel_is_not_written(tmp_path, monkeypatch, capsys, words, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    project(tmp_path / "two", ["one", "two"])
    assert main(["init", *words]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.rglob("wheels.yml")) == []


def test_a_starter_that_knows_no_farm_fails_with_what_to_fill_in(starter):
    script = next(
        step["run"] for _, step in starter.steps() if "pipx install" in step.get("run", "")
    )
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        env={"PATH": "/usr/bin:/bin", "FARM": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith(
        "::error::wheels.yml does not say which farm to install: write its repository"
    )


def test_pull_requests_of_strangers_never_run_on_own_runners(workflow):
    own = [
        name for name, job in workflow.jobs.items() if not str(job["runs-on"]).startswith("ubuntu-")
    ]
    if workflow.path.name == "test.yml":
        assert set(workflow.on) == {"pull_request", "push"}
        assert own == []
        assert "secrets." not in workflow.text
    elif workflow.path.name == "release.yml":
        assert workflow.on == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}
        assert own == []
    elif workflow.path.name in {"catalogue.yml", "distributions.yml", "index.yml"}:
        assert set(workflow.on) == {"schedule", "workflow_dispatch"}
        assert own == []
    else:
        assert set(workflow.on) == {"workflow_dispatch"}
        assert own


def test_the_engine_and_its_workflow_agree():
    workflow = Workflow(ROOT / ".github/workflows" / WORKFLOW)
    assert "${{ inputs.submission_id }}" in workflow.data["run-name"].split("farm ")[1]
    last = list(workflow.jobs.values())[-1]
    assert WORK in [step.get("name") for step in last["steps"]]
    assert OUTPUT in [step["with"].get("name") for step in last["steps"] if "with" in step]


# -- the scripts of the plan and summary jobs, run as the workflow runs them --


def step_of(workflow, job, name):
    steps = Workflow(ROOT / ".github/workflows" / workflow).jobs[job]["steps"]
    return next(step["run"] for step in steps if step.get("name") == name)


@pytest.fixture
def shell(tmp_path):
    """Runs a step's script in a checkout with `farm` on PATH; returns the process and the
    outputs.
    """

    def execute(script, **env):
        work = tmp_path / "work"
        shutil.copytree(ROOT / "ci", work / "ci", dirs_exist_ok=True)
        shutil.copytree(ROOT / "tools", work / "tools", dirs_exist_ok=True)
        path = f"{BIN}:/usr/bin:/bin"
        outputs = tmp_path / "outputs"
        outputs.write_text("")
        full = {
            "PATH": path,
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            **env,
        }
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=work,
            env=full,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        return done, dict(line.split("=", 1) for line in outputs.read_text().splitlines())

    return execute


def test_the_matrix_of_a_channel(shell):
    script = step_of("build-wheels.yml", "plan", "Make the matrix")
    done, outputs = shell(script, CHANNEL="main", PACKAGE="torch*", VARIANT="sm61-*", CHUNK="0")
    assert done.returncode == 0, done.stderr
    builds = json.loads(outputs["build"])["include"]
    assert sorted((b["package"], b["variant"]) for b in builds) == [
        ("torch", "sm61-avx-py313"),
        ("torch", "sm61-avx2-py313"),
        ("torchaudio", "sm61-avx-py313"),
        ("torchvision", "sm61-avx-py313"),
    ]
    smoke = json.loads(outputs["smoke"])["include"]
    assert [s["name"] for s in smoke] == [b["name"] for b in builds]
    assert smoke[0]["runs_on"] == [
        "self-hosted",
        "linux",
        "x64",
        "farm-smoke",
        "gpu",
        "sm61",
        "avx",
    ]


def step_of_the_starter(job, name):
    steps = Workflow(EXAMPLE / ".github/workflows/wheels.yml").jobs[job]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == name]
    return script


def carry_out_step(script, folder, **env):
    """GitHub's default shell is `bash -e`."""
    environment = {"PATH": f"{BIN}:/usr/bin:/bin", "PACKAGE": "*", "VARIANT": "*", **env}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def started(tmp_path):
    """A project that `farm init` wrote."""
    for part in ("ci", "recipes"):
        shutil.copytree(EXAMPLE / part, tmp_path / part)
    return tmp_path


@pytest.mark.parametrize(("lost", "code"), [(None, 0), ("matrix.yaml", 2)])
def test_the_starter_workflow_stops_where_there_is_no_matrix(started, lost, code):
    """What fails inside of echo's quotes does not end the step."""
    if lost:
        (started / "ci" / lost).write_text("channels: [\n")
    outputs = started / "outputs"
    script = step_of_the_starter("plan", "List the builds")
    done = carry_out_step(script, started, GITHUB_OUTPUT=str(outputs))
    assert (done.returncode, outputs.exists()) == (code, code == 0), done.stderr
    if code == 0:
        (line,) = outputs.read_text().splitlines()
        assert {build["package"] for build in json.loads(line.removeprefix("builds="))} == {"hello"}


def test_the_starter_workflow_never_has_more_jobs_than_github_runs(started):
    names = ["hello", *(f"hello{number}" for number in range(20))]
    text = (started / "recipes/hello/recipe.yaml").read_text()
    for name in names[1:]:
        shutil.copytree(started / "recipes/hello", started / "recipes" / name)
        recipe = re.sub(r"(?m)^package: hello$", f"package: {name}", text)
        (started / "recipes" / name / "recipe.yaml").write_text(recipe)
    matrix = started / "ci/matrix.yaml"
    matrix.write_text(matrix.read_text().replace("[hello]", f"[{', '.join(names)}]"))
    assert len(list(load_matrix(started).builds("mine"))) > 256
    outputs = started / "outputs"
    script = step_of_the_starter("plan", "List the builds").replace("--missing ", "")
    done = carry_out_step(script, started, GITHUB_OUTPUT=str(outputs))
    assert done.returncode == 0, done.stderr
    assert "the first 256 of" in done.stderr
    assert len(json.loads(outputs.read_text().removeprefix("builds="))) == 256


def test_the_starter_workflow_publishes_what_is_good_and_fails_for_the_rest(started):
    """Two are no wheels: what the index had stays, its pages are written, and the job fails."""
    made = build_wheel(started / "made", "hello-2.0-py3-none-any.whl")
    publish_wheel(open_store(str(started / "artifacts/index")), made)
    for name in ("hello-python311-cpu-avx", "hello-python311-cpu-avx2"):
        folder = started / f"wheels/wheel {name}"
        folder.mkdir(parents=True)
        (folder / "inputs.json").write_text("{}")
        (folder / "hello-0.1.0-py3-none-any.whl").write_bytes(b"no zip")
    done = carry_out_step(step_of_the_starter("publish", "Verify and publish"), started)
    assert done.returncode not in (0, 1), done.stderr
    assert done.stderr.count("does not hold what its name promises") == 2
    assert "hello" in (started / "artifacts/index/index.html").read_text()
    assert (started / "artifacts/index/index.html").exists()


def test_the_starter_workflow_builds_each_build_of_its_channel(tmp_path, capsys):
    """Two CUDA versions, two platforms: each job must build its own."""
    for part in ("ci", "recipes"):
        shutil.copytree(EXAMPLE / part, tmp_path / part)
    for file in ("ci/matrix.yaml", "recipes/hello/recipe.yaml"):
        text = (
            (tmp_path / file)
            .read_text()
            .replace("platforms: [linux]", "platforms: [linux, windows]")
        )
        text = text.replace("toolkit: debian", "toolkit: nvidia").replace(
            "    base: debian-bookworm\n", ""
        )
        (tmp_path / file).write_text(
            text.replace('cuda: "11.8"', 'cuda: ["11.7", "11.8"]').replace(
                "[hello]", "[hello, canary]"
            )
        )
    assert main(["--project", str(tmp_path), "matrix", "--channel", "mine", "--json"]) == 0
    builds = json.loads(capsys.readouterr().out)
    assert len({build["alias"] for build in builds}) == len(builds)
    job = Workflow(EXAMPLE / ".github/workflows/wheels.yml").jobs["build"]
    (words,) = [words for step in job["steps"] for words in farm_commands(step.get("run", ""))]
    for build in builds:
        values = {
            name: build[re.fullmatch(r"\$\{\{ matrix\.build\.(\w+) \}\}", text)[1]]
            for name, text in job["env"].items()
        }
        given = parser().parse_args(
            [re.sub(r"\$(\w+)", lambda m, of=values: of[m[1]], word) for word in words]
        )
        (args,) = each_build(given, tmp_path)
        chosen = selectors_of(args, tmp_path, load_settings(tmp_path))
        plan = resolve(tmp_path, chosen)
        found = {"channel": plan.channel, "variant": plan.variant, "platform": plan.platform}
        assert found == {key: build[key] for key in found}
        assert plan.options["cuda"] == build["cuda"], build["alias"]
        assert plan.package == build["package"]


def test_a_chunk_that_is_not_there(shell):
    script = step_of("build-wheels.yml", "plan", "Make the matrix")
    done, outputs = shell(
        script, CHANNEL="kepler-debian", PACKAGE="*", VARIANT="*", CHUNK="0\nbuild={}; touch owned"
    )
    assert done.returncode == 2
    assert "there are 1, from 0 on" in done.stderr
    assert outputs == {}


@pytest.mark.parametrize("number", ["2", "-1", "x", "", "0x0", "\u0660", "9999", "0\n"])
def test_a_matrix_is_split_into_chunks(number):
    matrix = {
        "build": [[{"name": "a"}], [{"name": "b"}]],
        "smoke": [[{"name": "a"}], [{"name": "b"}]],
    }
    second = {"include": [{"name": "b"}]}
    assert workflow_plan.chunk(matrix, "1") == {"build": second, "smoke": second}
    with pytest.raises(ValueError, match="there are 2, from 0 on"):
        workflow_plan.chunk(matrix, number)


def test_a_channel_that_is_not_there(shell):
    script = step_of("build-wheels.yml", "plan", "Make the matrix")
    done, outputs = shell(script, CHANNEL="$(touch owned)", PACKAGE="*", VARIANT="*", CHUNK="0")
    assert done.returncode == 2
    assert outputs == {}


def test_the_labels_of_a_smoke_test(shell):
    script = step_of("smoke.yml", "plan", "Which runner")
    variables = {
        "CHANNEL": "kepler-2.0.1",
        "PACKAGE": "canary",
        "PLATFORM": "linux",
        "VARIANT": "sm35-avx-py311",
    }
    done, outputs = shell(script, LABELS="", **variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(outputs["labels"]) == [
        "self-hosted",
        "linux",
        "x64",
        "farm-smoke",
        "gpu",
        "sm35",
        "avx",
    ]
    variables["VARIANT"] = "sm35-avx-py314"  # not in the matrix
    done, outputs = shell(script, LABELS='["self-hosted", "k40"]', **variables)
    assert json.loads(outputs["labels"]) == ["self-hosted", "k40"]
    for bad in ("[", ""):
        done, outputs = shell(script, LABELS=bad, **variables)
        assert (done.returncode, outputs) == (2, {})


@pytest.mark.parametrize(
    "bad", ["[", '"x"', "[]", "{}", '["a b"]', '["a\\nb"]', '["a", 1]', "[" * 5000, "\nx=1"]
)
def test_text_that_is_not_a_label_list_is_refused(bad, tmp_path, capsys, monkeypatch):
    (tmp_path / "matrix.json").write_text("{}")
    monkeypatch.setattr(
        sys, "argv", ["workflow_plan.py", "labels", str(tmp_path / "matrix.json"), bad]
    )
    assert workflow_plan.main() == 2
    assert capsys.readouterr().out == ""


def test_the_summary_lists_the_published_wheels(tmp_path):
    (tmp_path / "matrix.json").write_text(
        json.dumps({"include": [{"name": "main a"}, {"name": "main b"}]})
    )
    rows = [
        ("build main a", "success"),
        ("verify main a", "success"),
        ("publish main a", "success"),
    ]
    rows += [
        ("smoke main a", "failure"),
        ("build main b", "failure"),
        ("plan", "success"),
        ("summary", None),
    ]
    (tmp_path / "jobs.jsonl").write_text(
        "".join(json.dumps({"name": n, "conclusion": c}) + "\n" for n, c in rows)
    )
    folder = tmp_path / "published" / "published main a"
    folder.mkdir(parents=True)
    hostile = "pip install torch==1 | `id` <img src=x>\nnew line \x1b[31m"
    (folder / "published.json").write_text(json.dumps({"pip": hostile}))
    done = run(
        sys.executable, ROOT / "tools/workflow_summary.py", "--matrix", tmp_path / "matrix.json",
        "--jobs", tmp_path / "jobs.jsonl", "--published", tmp_path / "published",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "### build 1 of 2, verify 1 of 2, publish 1 of 2, smoke 0 of 2"
    assert (
        lines[4]
        == "| main a | ✅ | ✅ | ✅ | ❌ | `pip install torch==1 ? ?id? ?img src=x??new line ?[31m` |"
    )
    assert lines[5] == "| main b | ❌ | not run | not run | not run |  |"
    assert len(lines) == 6


def test_the_summary_takes_no_line_from_a_build_that_was_not_published(tmp_path):
    """Any job of the run may upload a file of that name, of any content."""
    names = ["failed", "list", "deep", "number", "good"]
    (tmp_path / "matrix.json").write_text(json.dumps({"include": [{"name": n} for n in names]}))
    rows = [(f"publish {n}", "failure" if n == "failed" else "success") for n in names]
    (tmp_path / "jobs.jsonl").write_text(
        "".join(json.dumps({"name": n, "conclusion": c}) + "\n" for n, c in rows)
    )
    contents = {
        "failed": '{"pip": "pip install torch --index-url https://evil.example"}',
        "list": "[]",
        "deep": "[" * 50_000,
        "number": '{"pip": 1}',
        "good": '{"pip": "pip install good"}',
    }
    for name, content in contents.items():
        folder = tmp_path / "published" / f"published {name}"
        folder.mkdir(parents=True)
        (folder / "published.json").write_text(content)
    done = run(
        sys.executable, ROOT / "tools/workflow_summary.py", "--matrix", tmp_path / "matrix.json",
        "--jobs", tmp_path / "jobs.jsonl", "--published", tmp_path / "published",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "evil" not in done.stdout
    assert "`pip install good`" in done.stdout
    assert done.stdout.count("`") == 2


LOCKED = re.compile(r"--require-hashes( -r requirements(-[a-z]+)?\.lock)+$")
ITSELF = "--no-index --no-deps --no-build-isolation -e ."


def test_nothing_is_installed_that_no_lock_has():
    """Without build isolation: with it, pip fetches the build backend itself, whatever version
    there is, unhashed.
    """
    action = yaml.safe_load(ACTIONS[0].read_text())["runs"]["steps"][0]["run"]
    assert run("bash", "-n", "-c", action).returncode == 0
    scripts = [action, (ROOT / "Makefile").read_text()]
    scripts += [step.get("run", "") for path in FILES for _, step in Workflow(path).steps()]
    installs = [
        line.strip() for text in scripts for line in text.splitlines() if "pip install" in line
    ]
    assert len(installs) == 6
    for line in installs:
        assert line.endswith((ITSELF, "--no-index --no-deps repaired/*.whl")) or LOCKED.search(
            line
        ), line


def test_the_lock_of_the_build_backend_has_what_the_project_asks_for():
    import tomllib

    from packaging.requirements import Requirement

    (requirement,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"][
        "requires"
    ]
    locked = (ROOT / "requirements-build.lock").read_text()
    name, _, version = locked.split()[0].partition("==")
    assert Requirement(requirement).name == name
    assert Requirement(requirement).specifier.contains(version)
    assert locked.count("--hash=sha256:") >= 1


UNTRUSTED = re.compile(
    r"^\s*(farm (build|submit|verify|publish|smoke|index|report|site)|python -m "
    r"tools\.refresh_catalogue)\b",
    re.MULTILINE,
)
"""What shows texts of a package, an index or a report."""


def test_output_of_a_build_cannot_be_a_workflow_command(workflow):
    """GitHub's runner obeys `::add-mask::` and the like in every line that a step prints, indented
    or not.
    """
    for name, step in workflow.steps():
        script = step.get("run", "")
        if UNTRUSTED.search(script):
            before = script[: UNTRUSTED.search(script).start()]
            assert 'echo "::stop-commands::$fence"' in before, (name, step["name"])
            assert """trap 'echo "::$fence::"' EXIT""" in before, (name, step["name"])


def build_plan_steps():
    return [step for _, step in Workflow(ROOT / ".github/workflows/build-plan.yml").steps()]


def test_an_artifact_is_kept_as_long_as_a_run_is_looked_for():
    """After a long weekend the controller found that "the artifact has expired"."""
    uploads = [step for step in build_plan_steps() if "upload-artifact" in step.get("uses", "")]
    assert {step["with"]["retention-days"] for step in uploads} == {ADOPT.days}


def test_an_upload_is_tried_three_times_and_the_last_failure_counts():
    uploads = [step for step in build_plan_steps() if "upload-artifact" in step.get("uses", "")]
    assert [step.get("continue-on-error", False) for step in uploads] == [True, True, False]
    assert [step.get("if") for step in uploads] == [
        None,
        "steps.upload-1.outcome == 'failure'",
        "steps.upload-2.outcome == 'failure'",
    ]


def test_a_wheel_that_was_not_uploaded_is_not_built_again(tmp_path):
    """The checkout is cleaned between two attempts; what is kept lies outside of it."""
    script = next(step["run"] for step in build_plan_steps() if step.get("name") == WORK)
    tools = tmp_path / "tools"
    tools.mkdir()
    built = "mkdir -p artifacts/runs/1/built/wheel; echo x > artifacts/runs/1/built/wheel/x.whl"
    (tools / "farm").write_text(f"#!/bin/sh\necho built >> {tmp_path}/calls\n{built}\n")
    (tools / "farm").chmod(0o755)
    for number in range(2):
        checkout = tmp_path / f"checkout-{number}"
        (checkout / "temp").mkdir(parents=True)
        environ = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PLAN": '{"a": 1}',
            "RUNNER_TEMP": str(checkout / "temp"),
            "RUNNER_TOOL_CACHE": str(tmp_path / "cache"),
        }
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        subprocess.run(command, cwd=checkout, env=environ, check=True, capture_output=True)
        assert (checkout / "farm-out/wheel/x.whl").read_text() == "x\n"
    assert (tmp_path / "calls").read_text() == "built\n"


def test_every_step_draws_a_new_fence():
    script = next(
        s["run"]
        for _, s in Workflow(ROOT / ".github/workflows/build-plan.yml").steps()
        if s.get("name") == WORK
    )
    head = script[: script.index("printf")]
    seen = set()
    for _ in range(3):
        done = run("bash", "-e", "-c", head + "echo '::add-mask::x'; false")
        first, middle, last = done.stdout.splitlines()
        token = first.removeprefix("::stop-commands::")
        assert (middle, last, done.returncode) == ("::add-mask::x", f"::{token}::", 1)
        assert re.fullmatch(r"[0-9a-f]{32}", token)
        seen.add(token)
    assert len(seen) == 3


def test_the_page_on_runners_counts_the_chunks_as_they_are():
    matrix, labels = load_matrix(ROOT), load_github(ROOT)
    chunks = {
        name: len(
            workflow_matrix(
                matrix,
                matrix.builds(name),
                lambda job, b: labels.runs_on(job, b.variant, b.platform),
            )["build"]
        )
        for name in matrix.channels
    }
    assert {name: count for name, count in chunks.items() if count != 1} == {
        "debian-2.6.0": 2,
        "kepler-2.0.1": 2,
        "legacy-2.14.1": 3,
    }
    text = " ".join((ROOT / "docs/how-to/runners.md").read_text(encoding="utf-8").split())
    assert (
        "Of the channels of `ci/matrix.yaml`, `debian-2.6.0` and `kepler-2.0.1` have two, "
        "`legacy-2.14.1` has three, the others one" in text
    )
