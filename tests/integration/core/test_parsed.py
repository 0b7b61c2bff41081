"""The package's own YAML: kept parsed, read again when it changed, and the same records either way."""

import sys
from pathlib import Path

import pytest

from farm import catalog
from farm.base import yaml_cache as parsed
from farm.base import yamlfile
from farm.base.yamlfile import Model, load
from farm.catalog import gpus, makers, models, paste
from farm.machine.detect import hardware
from farm.plan import recipe

FACTS = {
    "architectures": models.Architectures,
    "cpus": models.CpuLevels,
    "cuda": models.Toolkits,
    "cudnn": models.CudnnReleases,
    "debian": models.DebianReleases,
    "dropped": models.DroppedCards,
    "features": models.Features,
    "gpus": gpus.Gpus,
    "library_wheels": models.LibraryWheels,
    "makers": makers._Makers,
    "msvc": models.Msvc,
    "nvidia": models.NvidiaProvider,
    "official": models.OfficialWheels,
    "paste": paste.Grammar,
    "python": models.PythonVersions,
    "standalone_pythons": models.StandalonePythons,
    "toolkit_wheels": models.WheelToolkits,
    "torch": models.TorchReleases,
    "windows": models.Windows,
}
PATHS = {catalog.FOLDER / f"{name}.yaml": model for name, model in FACTS.items()}
PATHS[Path(hardware.__file__).with_name("levels.yaml")] = hardware.Levels


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A folder in the place of the package, where Python keeps what it compiles."""
    monkeypatch.setattr(parsed, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return tmp_path


@pytest.fixture
def unread(monkeypatch):
    """No YAML is parsed from here on."""

    def parse(*_args, **_kwargs):
        raise AssertionError("parsed again")

    def use():
        monkeypatch.setattr(yamlfile.yaml, "load", parse)

    return use


def shape(value):
    """A record as it is, with what of it was written."""
    if isinstance(value, Model):
        inner = {name: shape(getattr(value, name)) for name in type(value).model_fields}
        return type(value), frozenset(value.model_fields_set), inner
    if isinstance(value, dict):
        return [(shape(key), shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value), value


def test_every_file_of_facts_is_among_these():
    assert {path.name for path in catalog.FOLDER.glob("*.yaml")} == {path.name for path in PATHS} - {"levels.yaml"}


@pytest.mark.parametrize(("path", "model"), PATHS.items(), ids=lambda part: getattr(part, "stem", ""))
def test_kept_facts_make_the_records_that_checked_ones_make(path, model, package, unread):
    copy = package / path.name
    copy.write_bytes(path.read_bytes())
    checked = load(copy, model)
    unread()
    kept = load(copy, model)
    assert shape(kept) == shape(checked)
    assert kept == checked


def test_recipes_are_kept_parsed_and_still_checked(package, unread):
    copy = package / "recipe.yaml"
    copy.write_bytes((recipe.FOLDER / "canary" / "recipe.yaml").read_bytes())
    checked = load(copy, recipe.Recipe)
    unread()
    assert load(copy, recipe.Recipe) == checked


class Small(Model):
    word: str
    more: int = 3


def kept_files(package):
    return sorted(path.name for path in package.rglob("*") if path.is_file() and path.suffix != ".yaml")


def test_a_file_that_changed_is_read_again(package):
    path = package / "small.yaml"
    path.write_text("word: one\n")
    assert load(path, Small).word == "one"
    path.write_text("word: two\n")
    assert load(path, Small).word == "two"
    assert len(kept_files(package)) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"0" * 64 + b"\n{}", b"\xff\n\xff"])
def test_what_is_kept_and_damaged_is_not_used(package, damage):
    path = package / "small.yaml"
    path.write_text("word: one\n")
    load(path, Small)
    (kept,) = (package / "__pycache__").iterdir()
    kept.write_bytes(damage)
    assert load(path, Small) == load(path, Small) == Small(word="one")


def test_what_another_version_kept_is_not_used(package):
    path = package / "small.yaml"
    path.write_text("word: one\n")
    parsed.keep(path, path.read_bytes(), {"other": "one"})
    assert load(path, Small) == load(path, Small) == Small(word="one")


def test_a_wrong_file_is_not_kept_and_its_error_names_the_line(package):
    path = package / "small.yaml"
    path.write_text("more: 4\nwrod: one\n")
    for _ in range(2):
        with pytest.raises(yamlfile.UsageError, match=r"small\.yaml:2: unknown key 'wrod'; did you mean 'word'\?"):
            load(path, Small)
    assert kept_files(package) == []


def test_nothing_is_kept_of_a_project_nor_where_python_keeps_nothing(package, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("project") / "small.yaml"
    elsewhere.write_text("word: one\n")
    load(elsewhere, Small)
    assert [path.name for path in elsewhere.parent.iterdir()] == ["small.yaml"]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = package / "small.yaml"
    path.write_text("word: one\n")
    load(path, Small)
    assert kept_files(package) == []


def test_a_folder_that_cannot_be_written_does_no_harm(package):
    (package / "__pycache__").write_text("a file in its place")
    path = package / "small.yaml"
    path.write_text("word: one\n")
    assert load(path, Small).word == "one"
