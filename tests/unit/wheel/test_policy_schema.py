"""The JSON schema of policies: it is the model's, takes the documentation's examples and refuses as the loader does."""

import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from farm.base.errors import UsageError
from farm.wheel.policy import load_policy
from tools.policy_schema import schema

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = [
    match[1]
    for page in ("verify.md",)
    for match in re.finditer(r"```yaml\n(# policy\.yaml.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
]
WAIVERS = "waivers:\n- {check: link, member: 'a/*', reason: known}\n"


@pytest.fixture(scope="module")
def validator():
    made = json.loads(schema())
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


def test_the_shipped_schema_is_that_of_the_model():
    shipped = resources.files("farm.wheel") / "policy.schema.json"
    assert shipped.read_text(encoding="utf-8") == schema(), "run python -m tools.policy_schema"


@pytest.mark.parametrize(
    "text",
    [
        *EXAMPLES,
        WAIVERS,
        "{}",
        "sass: null\nforeign: null\nforbidden: null\n",
        "sass: [35, 90a, 100f]\nptx: [90]\n",
        "cpu: armv8\n",
    ],
)
def test_what_both_take(validator, tmp_path, text):
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    load_policy(path)
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []


def test_the_documentation_has_an_example_with_waivers():
    assert any("waivers:" in text and "sass:" in text for text in EXAMPLES)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("cpus: avx\n", "$"),
        ("cpu: avx3\n", "$.cpu"),
        ("python: py3\n", "$.python"),
        ("python: pp310\n", "$.python"),
        ("platform: beos_x86_64\n", "$.platform"),
        ("sass: [90x]\n", "$.sass"),
        ("sass: ['90']\n", "$.sass"),
        ("sass: 90\n", "$.sass"),
        ("allow_other_sass: often\n", "$.allow_other_sass"),
        ("exclude: libnuma.so.1\n", "$.exclude"),
        ("forbidden: none\n", "$.forbidden"),
        (WAIVERS.replace("link", "archive"), "$.waivers[0].check"),
        (WAIVERS.replace("known", "''"), "$.waivers[0].reason"),
        (WAIVERS.replace("known", "'  '"), "$.waivers[0].reason"),
        (WAIVERS.replace("'a/*'", "''"), "$.waivers[0].member"),
        (WAIVERS.replace(", reason: known", ""), "$.waivers[0]"),
        (WAIVERS.replace("reason", "why"), "$.waivers[0]"),
    ],
)
def test_what_both_refuse(validator, tmp_path, text, where):
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        load_policy(path)
    assert where in [error.json_path for error in validator.iter_errors(yaml.safe_load(text))]
