"""Sources: fetched once, verified, and laid out as a build wants them."""

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler

import pytest

from farm.base.errors import BuildFailedError, InfrastructureError, UsageError
from farm.base.hashes import tree_digest
from farm.plan.file import PartPlan, SourcePlan
from farm.run import download, sources
from farm.run.download import apt_mirror, fetch, index_files
from farm.run.sources import gather
from tests.plans import plan_of
from tests.servers.threads import answered_by


@pytest.fixture
def plan():
    return plan_of("sm35-avx-py311", "canary")


def git(folder, *args):
    command = [
        "git",
        "-C",
        folder,
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.invalid",
        *args,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "setup.py").write_text("one\n")
    (folder / "link").symlink_to("setup.py")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "-am", "release", "v1")
    return folder


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def of_git(repository):
    commit = git(repository, "rev-parse", "v1^{commit}")
    return SourcePlan(kind="git", url=repository.as_uri(), tag="v1", commit=commit)


def of_archive(path):
    return SourcePlan(
        kind="archive", url=path.as_uri(), sha256=hashlib.sha256(path.read_bytes()).hexdigest()
    )


def tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def contents(path):
    with tarfile.open(path) as archive:
        return {
            m.name: archive.extractfile(m).read().decode()
            for m in archive.getmembers()
            if m.isreg() and "/.git/" not in m.name
        }


def test_a_git_source_is_fetched_once_at_its_commit(repository, cache):
    source, lines = of_git(repository), []
    first = fetch(source, cache, mirror=None, line=lines.append)
    assert fetch(source, cache, mirror=None, line=lines.append) == first
    assert contents(first)["source/setup.py"] == "one\n"
    assert [line.split(" --")[0] for line in lines] == ["+ git clone"]
    assert sorted(p.name for p in cache.iterdir()) == [
        f"{source.commit}.sha256",
        f"{source.commit}.tar",
    ]


def test_a_cached_source_that_was_changed_is_fetched_again(repository, cache):
    source, lines = of_git(repository), []
    packed = fetch(source, cache, mirror=None, line=lines.append)
    packed.write_bytes(packed.read_bytes().replace(b"one\n", b"two\n"))
    assert (
        contents(fetch(source, cache, mirror=None, line=lines.append))["source/setup.py"] == "one\n"
    )
    assert len(lines) == 2


def with_submodule(repository, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "library.h").write_text("first\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "one")
    allow = ["-c", "protocol.file.allow=always"]
    git(repository, *allow, "submodule", "--quiet", "add", "../library", "third_party/library")
    (library / "library.h").write_text(
        "second\n"
    )  # the submodule's commit is no longer where its branch ends
    git(library, "commit", "-qam", "two")
    git(repository, "commit", "-qm", "with a submodule")
    git(repository, "tag", "-fam", "release", "v1")
    return of_git(repository)


def test_a_git_source_comes_with_its_submodules_at_their_commits(
    repository, cache, tmp_path, monkeypatch
):
    source = with_submodule(repository, tmp_path)
    for name, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    found = contents(fetch(source, cache, mirror=None, line=print))
    assert found["source/third_party/library/library.h"] == "first\n"


def test_a_submodule_that_git_does_not_take_from_a_folder_is_explained(repository, cache, tmp_path):
    source = with_submodule(repository, tmp_path)
    with pytest.raises(
        BuildFailedError, match="a submodule is a folder of this machine:\n"
    ) as caught:
        fetch(source, cache, mirror=None, line=print)
    assert "protocol.file.allow always" in caught.value.hint
    assert list(cache.iterdir()) == []


def test_a_tag_that_moved_is_refused(repository, cache):
    source = of_git(repository)
    (repository / "setup.py").write_text("two\n")
    git(repository, "commit", "-qam", "two")
    git(repository, "tag", "-fam", "moved", "v1")
    now = git(repository, "rev-parse", "HEAD")
    with pytest.raises(
        BuildFailedError, match=f"tag v1 is commit {now}, the plan says {source.commit}"
    ):
        fetch(source, cache, mirror=None, line=print)
    assert list(cache.iterdir()) == []


def test_an_unknown_tag_is_a_mistake_of_the_recipe(repository, cache):
    source = of_git(repository).model_copy(update={"tag": "v99"})
    with pytest.raises(
        BuildFailedError, match=r"upstream has no tag v99:\n(.*\n)?.*Remote branch v99 not found"
    ):
        fetch(source, cache, mirror=None, line=print)


def test_a_missing_archive_is_reported(cache, tmp_path):
    gone = SourcePlan(kind="archive", url=f"file://{tmp_path}/a.tar.gz", sha256="0" * 64)
    with pytest.raises(BuildFailedError, match=r"a\.tar\.gz is not there") as error:
        fetch(gone, cache, mirror=None, line=print)
    assert "correct the name" in error.value.hint


def test_an_unreachable_repository_is_an_infrastructure_error(repository, cache, tmp_path):
    source = of_git(repository)
    repository.rename(tmp_path / "gone")
    with pytest.raises(
        InfrastructureError,
        match=r"git clone of .*upstream at v1 failed:\n.*does not (appear|exist)",
    ):
        fetch(source, cache, mirror=None, line=print)


def test_a_machine_without_git_says_so(repository, cache, tmp_path, monkeypatch):
    source = of_git(repository)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="there is no git here"):
        fetch(source, cache, mirror=None, line=print)


def test_an_archive_is_fetched_once_and_verified(cache, tmp_path):
    origin, lines = tar(tmp_path / "a.tar.gz", {"a-1/x": "x"}), []
    source = of_archive(origin)
    first = fetch(source, cache, mirror=None, line=lines.append)
    assert contents(first) == {"a-1/x": "x"}
    assert fetch(source, cache, mirror=None, line=lines.append) == first
    assert len(lines) == 1
    first.write_bytes(b"changed")
    assert contents(fetch(source, cache, mirror=None, line=lines.append)) == {"a-1/x": "x"}


def test_two_threads_may_fetch_one_archive(cache, tmp_path, monkeypatch):
    source = of_archive(tar(tmp_path / "a.tar.gz", {"a-1/x": "x"}))
    together, copy = threading.Barrier(2), download.shutil.copyfile

    def slow(origin, target):
        copy(origin, target)
        together.wait(timeout=120)

    monkeypatch.setattr(download.shutil, "copyfile", slow)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: fetch(source, cache, mirror=None, line=print), range(2)))
    assert found[0] == found[1]
    assert contents(found[0]) == {"a-1/x": "x"}
    assert [path.name for path in cache.iterdir()] == [found[0].name]


def test_an_archive_with_another_hash_is_refused_and_leaves_nothing(cache, tmp_path):
    origin = tar(tmp_path / "a.tar.gz", {"a-1/x": "x"})
    source = of_archive(origin)
    tar(origin, {"a-1/x": "y"})
    with pytest.raises(BuildFailedError, match=f"the recipe says {source.sha256}"):
        fetch(source, cache, mirror=None, line=print)
    assert list(cache.iterdir()) == []


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A Python index that pip is set to; its folder."""
    folder = tmp_path / "index"
    page = folder / "simple/some-maths"
    page.mkdir(parents=True)
    (page / "index.html").write_text(
        '<a href="/files/%3Ca.whl#sha256=0">a</a> <a href="../../files/b.whl#x">b</a>'
    )
    (folder / "files").mkdir()
    with answered_by(partial(SimpleHTTPRequestHandler, directory=folder)) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield folder


def test_a_wheel_comes_from_the_index_that_pip_is_set_to(index, cache):
    (index / "files/b.whl").write_bytes(b"wheel")
    source = SourcePlan(
        kind="wheel",
        package="Some_Maths",
        file="b.whl",
        sha256=hashlib.sha256(b"wheel").hexdigest(),
    )
    found = fetch(source, cache, mirror=None, line=print)
    assert (found.name, found.read_bytes()) == (f"{source.sha256}.whl", b"wheel")
    absent = source.model_copy(update={"file": "c.whl", "sha256": "0" * 64})
    with pytest.raises(BuildFailedError, match=r"the Python index has no c\.whl") as error:
        fetch(absent, cache, mirror=None, line=print)
    assert "/simple/some-maths/ has b.whl" in error.value.hint
    # A mistake in the recipe, which trying again does not mend; not an index that is away.
    with pytest.raises(
        BuildFailedError, match=r"/simple/some-math/ is not there: the server answers 404"
    ) as error:
        fetch(absent.model_copy(update={"package": "some-math"}), cache, mirror=None, line=print)
    assert "correct the name" in error.value.hint


def test_files_of_an_index_are_those_for_a_python(index):
    page = (
        '<a data-requires-python="&gt;=3.12" href="/x-2.tar.gz#sha256=aa">2</a><a '
        'href="/x-1.tar.gz#sha256=bb">1</a>'
    )
    (index / "simple/some-maths/index.html").write_text(page)
    assert index_files("some-maths", "3.11") == {"x-1.tar.gz": "bb"}
    assert index_files("some-maths", "3.12") == {"x-1.tar.gz": "bb", "x-2.tar.gz": "aa"}


def test_a_name_that_is_escaped_in_the_index_is_found(index, cache):
    """As indexes write `!` of an epoch and `+` of a local version."""
    (index / "files/c-2!1.0+a.whl").write_bytes(b"wheel")
    (index / "simple/some-maths/index.html").write_text('<a href="/files/c-2%211.0%2Ba.whl">c</a>')
    digest = hashlib.sha256(b"wheel").hexdigest()
    source = SourcePlan(kind="wheel", package="some-maths", file="c-2!1.0+a.whl", sha256=digest)
    assert fetch(source, cache, mirror=None, line=print).read_bytes() == b"wheel"


@pytest.mark.parametrize(
    ("package", "file", "address"),
    [
        (
            "pytorch",
            "pytorch_1.orig.tar.xz",
            "http://mirror/debian/pool/main/p/pytorch/pytorch_1.orig.tar.xz",
        ),
        (
            "libfoo",
            "libfoo_2.orig.tar.gz",
            "http://mirror/debian/pool/main/libf/libfoo/libfoo_2.orig.tar.gz",
        ),
    ],
)
def test_where_debian_keeps_an_upstream_tarball(package, file, address):
    source = SourcePlan(
        kind="debian-source", package=package, file=file, section="main", sha256="0" * 64
    )
    assert download._address(source, "http://mirror/debian/") == address


def test_parts_follow_the_tree_and_only_chosen_members_are_carried(plan, cache, tmp_path):
    big = tar(tmp_path / "big.tar.gz", {"big-1/wanted.h": "w", "big-1/other": "o" * 1000})
    parts = [
        PartPlan(
            into="third_party/big", source=of_archive(big), strip=1, members=["big-1/wanted.h"]
        ),
        PartPlan(into="third_party/all", source=of_archive(big), strip=1, members=[]),
    ]
    plan = plan.model_copy(update={"parts": parts})
    files = gather(plan, cache, tmp_path / "out", mirror=None, line=print)
    assert [path.name for path in files] == ["00.tar", "01.tar", "02.tar"]
    assert "source/setup.py" in contents(files[0])
    assert contents(files[1]) == {"big-1/wanted.h": "w"}
    assert files[2].read_bytes() == big.read_bytes()
    lacking = plan.model_copy(
        update={"parts": [parts[0].model_copy(update={"members": ["big-1/none"]})]}
    )
    with pytest.raises(BuildFailedError, match="holds no big-1/none"):
        gather(lacking, cache, tmp_path / "more", mirror=None, line=print)


def test_a_folder_is_packed_the_same_whenever_it_is_packed(plan, cache, tmp_path):
    one = gather(plan, cache, tmp_path / "one", mirror=None, line=print)[0].read_bytes()
    assert gather(plan, cache, tmp_path / "two", mirror=None, line=print)[0].read_bytes() == one


def test_a_source_next_to_the_recipe_is_the_one_of_the_plan(plan, cache, tmp_path):
    other = plan.model_copy(update={"source": plan.source.model_copy(update={"digest": "0" * 64})})
    with pytest.raises(UsageError, match="changed since the plan was made"):
        gather(other, cache, tmp_path / "out", mirror=None, line=print)


def test_a_part_may_come_out_of_a_wheel_by_folder(plan, cache, tmp_path):
    wheel = tmp_path / "headers.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/include/one.h", "1")
        archive.writestr("a/include/deep/two.h", "2")
        archive.writestr("a/include2/no.h", "3")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (cache / f"{sha256}.whl").write_bytes(wheel.read_bytes())
    source = SourcePlan(kind="wheel", package="a", file="a-1-py3-none-any.whl", sha256=sha256)
    plan = plan.model_copy(
        update={"parts": [PartPlan(into="a", source=source, strip=1, members=["a/include"])]}
    )
    files = gather(plan, cache, tmp_path / "out", mirror=None, line=print)
    assert contents(files[1]) == {"a/include/one.h": "1", "a/include/deep/two.h": "2"}


def test_a_missing_part_is_named_with_other_places_that_have_it(index, cache, tmp_path):
    plan = plan_of("cpu-avx-py311", channel="debian-2.6.0")
    part = next(part for part in plan.parts if part.into == "third_party/pybind11")
    source = tmp_path / "source.tar"
    tar(source, {"a": "a"})
    plan = plan.model_copy(update={"parts": [part], "source": of_archive(source)})
    page = index / "simple/pybind11"
    page.mkdir()
    (page / "index.html").write_text("nothing here")
    with pytest.raises(
        BuildFailedError, match=r"third_party/pybind11 of torch, from pybind11: "
    ) as error:
        gather(plan, cache, tmp_path / "out", mirror=None, line=print)
    assert error.value.hint.endswith(
        "/simple/pybind11/ has no files; instead of it: any pybind11 from 2.13 on, as wheel or "
        "sdist"
    )


def test_without_network_the_cache_is_used_and_missing_parts_are_named(
    cache, tmp_path, monkeypatch
):
    """Debian's mirror and the Python index are one server here, which stops after the first
    fetch.
    """
    web = tmp_path / "web"
    whole = plan_of("cpu-avx-py311", channel="debian-2.6.0")
    parts = []
    for name, folder in (("fmt", "debian/pool/main/f/fmtlib"), ("pybind11", "simple/pybind11")):
        part = next(part for part in whole.parts if part.into == f"third_party/{name}")
        (web / folder).mkdir(parents=True)
        file = web / folder / part.source.file
        if file.suffix == ".whl":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("pybind11/include/a.h", name)
            (web / folder / "index.html").write_text(f'<a href="{file.name}">a</a>')
        else:
            tar(file, {f"{name}/a.h": name})
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        parts.append(
            part.model_copy(update={"source": part.source.model_copy(update={"sha256": sha256})})
        )
    origin = tar(tmp_path / "source.tar", {"a": "a"})
    plan = whole.model_copy(update={"parts": parts, "source": of_archive(origin)})

    def gathered(dest):
        return [
            path.read_bytes()
            for path in gather(plan, cache, tmp_path / dest, mirror=f"{here}/debian", line=print)
        ]

    with answered_by(partial(SimpleHTTPRequestHandler, directory=web)) as here:
        monkeypatch.setenv("PIP_INDEX_URL", f"{here}/simple/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        first = gathered("first")
    assert gathered("again") == first
    for part, instead in zip(
        parts, ("fmtlib_11.1.1+ds1.orig.tar.gz", "any pybind11 from 2.13 on"), strict=True
    ):
        (kept,) = cache.glob(f"{part.source.sha256}.*")
        content = kept.read_bytes()
        kept.unlink()
        with pytest.raises(
            InfrastructureError,
            match=f"^{part.into} of torch, from {part.source.package}: http.* cannot",
        ) as error:
            gathered(f"without-{part.source.package}")
        assert error.value.hint.startswith(f"is the host reachable?; instead of it: {instead}")
        kept.write_bytes(content)
    assert gathered("at the end") == first


def test_a_part_that_changed_upstream_is_named(plan, cache, tmp_path):
    big = tar(tmp_path / "big.tar.gz", {"big-1/a.h": "a"})
    changed = plan.model_copy(
        update={
            "parts": [PartPlan(into="third_party/big", source=of_archive(big), strip=1, members=[])]
        }
    )
    tar(big, {"big-1/a.h": "b"})
    with pytest.raises(
        BuildFailedError, match=r"^third_party/big of canary, from file://.*, the recipe says "
    ):
        gather(changed, cache, tmp_path / "out", mirror=None, line=print)


def test_a_source_that_does_not_fit_is_named(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/setup.py").write_text("one\n")
    target = tmp_path / "00.tar"
    target.symlink_to("/dev/full")
    with pytest.raises(InfrastructureError, match=re.escape(f"{target}: No space left on device")):
        sources._pack(tmp_path / "src", target, print)


@pytest.mark.parametrize("checkout", [False, True])
def test_links_to_folders_stay_links_inside_the_source_and_are_named_outside(tmp_path, checkout):
    """As git and tar have them; an absolute one leads to the same folder wherever the source is
    unpacked.
    """
    source = tmp_path / "src"
    (source / "deep/real").mkdir(parents=True)
    (source / "deep/real/a.h").write_text("one")
    links = {
        "include": "deep/real",
        "deep/whole": str(source / "deep/real"),
        "deep/around": "../../src/deep/real",
        "again": "include",
        "deep/up": "..",
        "nowhere": "absent/folder",
        "outside": "/usr",
        "beside": "../other",
        "file": "deep/real/a.h",
    }
    for name, end in links.items():
        (source / name).symlink_to(end)
    if checkout:
        git(source, "init", "-q")
        git(source, "add", ".")
    notes = []
    target = tmp_path / "00.tar"
    sources._pack(source, target, notes.append)
    with tarfile.open(target) as packed:
        found = {member.name: member.linkname for member in packed}
        assert packed.extractfile("source/file").read() == b"one"
    assert found == {
        "source/deep/real/a.h": "",
        "source/file": "",
        "source/include": "deep/real",
        "source/deep/whole": "real",
        "source/deep/around": "real",
        "source/again": "deep/real",
        "source/deep/up": "..",
        "source/nowhere": "absent/folder",
    }
    (tmp_path / "there").mkdir()
    subprocess.run(
        ["tar", "--extract", "--file", target, "--directory", tmp_path / "there"], check=True
    )
    assert (tmp_path / "there/source/deep/up/again/a.h").read_text() == "one"
    assert sorted(text.split(" is left out")[0] for text in notes) == [
        str(source / "beside"),
        str(source / "outside"),
    ]


def test_where_a_link_leads_is_part_of_a_sources_digest(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    without = tree_digest(tmp_path)
    (tmp_path / "link").symlink_to("one")
    one = tree_digest(tmp_path)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("two")
    assert len({without, one, tree_digest(tmp_path)}) == 3


def test_a_source_that_is_a_zip_reaches_the_build_as_a_tar(plan, tmp_path, cache):
    """Sdists were zips once, and GitHub has both; the build unpacks with tar."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("data.txt", "inner")
    outer = tmp_path / "x-1.0.zip"
    with zipfile.ZipFile(outer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x-1.0/setup.py", "one")
        script = zipfile.ZipInfo("x-1.0/configure")
        script.external_attr = 0o100755 << 16
        archive.writestr(script, "two")
        archive.writestr("x-1.0/ends.zip", inner.getvalue())
        link = zipfile.ZipInfo("x-1.0/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "setup.py")
    changed = plan.model_copy(update={"source": of_archive(outer), "parts": []})
    (packed,) = gather(changed, cache, tmp_path / "out", mirror=None, line=print)
    (tmp_path / "there").mkdir()
    command = [
        "tar",
        "--extract",
        "--file",
        packed,
        "--directory",
        tmp_path / "there",
        "--strip-components=1",
    ]
    subprocess.run(command, check=True)
    assert (tmp_path / "there/setup.py").read_text() == "one"
    assert (tmp_path / "there/configure").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "there/link").readlink().as_posix() == "setup.py"
    # A tar stays what it is, whatever lies at its end.
    tar = tmp_path / "y.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(tmp_path / "there/ends.zip", "y/ends.zip")
    changed = plan.model_copy(update={"source": of_archive(tar), "parts": []})
    (packed,) = gather(changed, cache, tmp_path / "again", mirror=None, line=print)
    assert packed.read_bytes() == tar.read_bytes()


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:40], lambda raw: raw.replace(b"one", b"two")], ids=["cut", "crc"]
)
def test_a_zip_that_cannot_be_unpacked_is_named(plan, tmp_path, cache, damage):
    file = tmp_path / "x-1.0.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x-1.0/setup.py", "one")
    file.write_bytes(damage(file.read_bytes()))
    changed = plan.model_copy(update={"source": of_archive(file), "parts": []})
    with pytest.raises(
        BuildFailedError,
        match=r"cannot be unpacked: (File is not a zip file|Bad CRC-32 for file "
        r"'x-1\.0/setup\.py')$",
    ):
        gather(changed, cache, tmp_path / "out", mirror=None, line=print)


@pytest.mark.parametrize("first", [":env:", "global"])
def test_pips_environment_is_before_its_configuration(tmp_path, monkeypatch, first):
    """pip 22 to 24 print it first, newer ones last."""
    lines = [
        ":env:.index-url='https://env.example/simple'",
        "global.index-url='https://conf.example/simple'",
    ]
    program = tmp_path / "python"
    shown = lines if first == ":env:" else lines[::-1]
    program.write_text("#!/bin/sh\n" + "".join(f'echo "{line}"\n' for line in shown))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert download.pip_index() == "https://env.example/simple"
    program.write_text(f'#!/bin/sh\necho "{lines[1]}"\n')
    assert download.pip_index() == "https://conf.example/simple"


def test_an_index_may_be_a_folder(tmp_path):
    """`official:` of a channel: its wheel was looked for by HTTP alone."""
    page = tmp_path / "torch" / "index.html"
    page.parent.mkdir()
    page.write_text('<a href="torch-2.6.0%2Bcpu-cp311-cp311-linux_x86_64.whl#sha256=ab">x</a>')
    file, index = "torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl", tmp_path.as_uri()
    address = download.index_address("torch", file, index)
    assert address == f"{index}/torch/torch-2.6.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
    with pytest.raises(BuildFailedError, match="is not there"):
        download.index_address("vision", file, index)


def test_debians_packages_come_from_where_apt_gets_them(tmp_path, monkeypatch):
    """The program here stands in for apt: what it prints is in the form of `apt-get indextargets
    --format`.
    """
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="no mirror of Debian is known here") as caught:
        apt_mirror()
    assert "debian_mirror in ci/farm.yaml" in caught.value.hint
    program = tmp_path / "apt-get"
    program.write_text(
        "#!/bin/sh\necho http://a.example/ubuntu Ubuntu; echo http://b.example/debian Debian\n"
    )
    program.chmod(0o755)
    assert apt_mirror() == "http://b.example/debian"
