"""Brings farm/catalog up to what a Python package index has: new releases of PyTorch, CUDA and
cuDNN.

    tools/refresh-catalogue [torch] [cuda] [toolkits] [cudnn] [official] [pythons] [--write]
    [--check]
    tools/refresh-catalogue --checkout conda-forge=FOLDER --checkout Spack=FOLDER [--write]

Each record is read from published wheels and names its source. Without --write the difference is
printed as a patch and nothing is changed. What no wheel says (drivers, the CUDA flavours that
PyTorch publishes elsewhere) is left null or out, and listed under "to do by hand".
"""

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from farm import catalog
from farm.base.errors import FarmError
from farm.wheel import fatbin
from farm.wheel.elf import read_elf
from tools import other_makers, standalone_pythons, wheel_toolkits
from tools.package_index import PYPI, RemoteWheel, Wheel, release_key, wheels

FOLDER = catalog.FOLDER
OLDEST_TORCH = (1, 12)
OLDEST_CUDNN = (8, 5)
OLDEST_CUDA = (12, 0)
"""The first CUDA whose compiler wheels hold `ptxas` and `crt/host_config.h`."""
PLATFORMS = {"linux": "manylinux.*x86_64", "windows": "win_amd64", "macos": "macosx.*arm64"}
OFFICIAL = {
    "linux-x86_64": "manylinux.*x86_64",
    "linux-aarch64": "manylinux.*aarch64",
    "windows-x86_64": "win_amd64",
}
JOBS = 6

Proposal = tuple[str, str, str]
"""The file's section, the record's key, the record's text."""


class Notes:
    """Facts that a person must add."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)


def insert(text: str, section: str, key: str, record: str) -> str:
    """The YAML text with a record more in a top-level section, in the order of versions."""
    # As text: a YAML library would lose the comments and the layout.
    lines = text.splitlines(keepends=True)
    start = next(n for n, line in enumerate(lines) if line.startswith(f"{section}:")) + 1
    place = start
    for number in range(start, len(lines)):
        match = re.match(r'  "?([\d.]+)"?:', lines[number])
        if match and release_key(match[1]) > release_key(key):
            place = number
            break
        if re.match(r"[a-z_]+:", lines[number]):
            break
        if lines[number].startswith("  "):
            place = number + 1
    return "".join([*lines[:place], record, *lines[place:]])


def quoted(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def python_order(name: str) -> tuple[int, bool]:
    return int(name.removeprefix("py3").removesuffix("t") or 0), name.endswith("t")


def of_release(found: Iterable[Wheel], platform: str) -> list[Wheel]:
    return [wheel for wheel in found if re.fullmatch(platform, wheel.platform)]


def probe(found: Sequence[Wheel], platform: str) -> Wheel | None:
    """The wheel that is read for a release and platform: of the oldest Python that is not
    free-threaded.
    """
    plain = [wheel for wheel in of_release(found, platform) if not wheel.python.endswith("t")]
    return min(plain, key=lambda wheel: (python_order(wheel.python), wheel.file), default=None)


# --- PyTorch ---


def version_facts(wheel: RemoteWheel, package: str) -> dict[str, str]:
    """Values that `<package>/version.py` assigns: `git_version`, `cuda`."""
    name = wheel.find(f"{package}/version.py")
    if name:
        return dict(re.findall(r"^(\w+)(?::[^=]*)? = '([^']*)'", wheel.text(name), re.MULTILINE))
    return {}


def companions(index: str, package: str) -> dict[str, tuple[str, str]]:
    """For each torch release the newest companion that asks for exactly it: its version and
    commit.
    """
    by_version: dict[str, list[Wheel]] = {}
    for wheel in wheels(index, package):
        by_version.setdefault(wheel.version, []).append(wheel)
    newest = sorted(by_version, key=release_key)

    def companion(version: str) -> tuple[str, str, str] | None:
        chosen = probe(by_version[version], PLATFORMS["linux"])
        if chosen is None:
            return None
        remote = RemoteWheel(chosen)
        torch = next(
            (
                m[1]
                for line in remote.requirements
                if (m := re.match(r"torch ?\(?==([\d.]+)", line))
            ),
            None,
        )
        commit = version_facts(remote, package).get("git_version")
        return (torch, version, commit) if torch and commit else None

    with ThreadPoolExecutor(JOBS) as pool:
        # In rising order, so that the newest companion of a release is the one that stays.
        return {each[0]: each[1:] for each in pool.map(companion, newest[-40:]) if each}


def torch_record(
    version: str, found: Sequence[Wheel], pairs: Sequence[dict[str, tuple[str, str]]]
) -> str:
    """A release as `torch.yaml` holds it; what no wheel says follows its predecessor, and is said
    to be unconfirmed.
    """
    chosen = probe(found, PLATFORMS["linux"])
    assert chosen
    remote = RemoteWheel(chosen)
    cuda_cmake = remote.find("Caffe2/public/cuda.cmake")
    cuda_min = re.search(
        r"CUDA_VERSION VERSION_LESS \"?([\d.]+)", remote.text(cuda_cmake) if cuda_cmake else ""
    )
    config = remote.find("Torch/TorchConfig.cmake")
    cxx = re.search(r"CXX_STANDARD (\d+)", remote.text(config) if config else "")
    known = [
        other for other in catalog.torch_releases() if release_key(other) < release_key(version)
    ]
    if known:
        before = catalog.torch_releases()[known[-1]]
    else:
        before = next(iter(catalog.torch_releases().values()))
    least = cuda_min[1] if cuda_min else before.cuda_min
    # No lower than its predecessor's, and no lower than what the oldest CUDA that it takes compiles
    # for.
    minimum = max(
        before.sm_min, min(catalog.toolkits()[catalog.find(catalog.toolkits(), least) or "11.4"].sm)
    )
    pythons = {
        name: sorted({w.python for w in of_release(found, tag)}, key=python_order)
        for name, tag in PLATFORMS.items()
    }
    lines = [
        f'  "{version}":',
        f"    commit: {version_facts(remote, 'torch')['git_version']}",
        f'    cuda_min: "{least}"',
        f"    cxx: {cxx[1] if cxx else before.cxx}",
        f"    sm_min: {minimum}",
        f"    sm_built: {max(minimum, before.sm_built)}",
        "    pythons: {"
        + ", ".join(f"{name}: {quoted(words)}" for name, words in pythons.items())
        + "}",
        f"    numpy_major_max: {before.numpy_major_max}",
        f"    gcc_min: {before.gcc_min if before.gcc_min is not None else 'null'}",
        "    msvc_built: null",
        *([f"    msvc_min: {before.msvc_min}"] if before.msvc_min else []),
        f"    official: [{official_pair(remote) or ''}]",
    ]
    doubts = {"sm_min": "no build of this release for its lowest SM is known"}
    if before.msvc_min:
        doubts["msvc_min"] = "an older compiler was not tried with this release"
    if known and before.gcc_min is not None:
        sources = {"gcc_min": f"as for {known[-1]}"}
    else:
        sources = {}
    for name, pair, last in zip(
        ("vision", "audio"), pairs, (before.vision, before.audio), strict=True
    ):
        companion, commit = pair.get(version, (last, None))
        lines.append(f'    {name}: "{companion}"')
        if commit:
            lines.append(f"    {name}_commit: {commit}")
        else:
            sources[name] = (
                "no published companion asks for exactly this torch: the newest that there was"
            )
    if cxx is None:
        doubts["cxx"] = "the CMake files of the wheel no longer say"
    for title, words in (("sources", sources), ("unconfirmed", doubts)):
        if words:
            lines += [f"    {title}:", *(f'      {key}: "{text}"' for key, text in words.items())]
    return "\n".join(lines) + "\n"


def official_pair(remote: RemoteWheel) -> str | None:
    """The CUDA and cuDNN of a wheel, as `official` in `torch.yaml` holds them."""
    cuda = version_facts(remote, "torch").get("cuda")
    cudnn = next(
        (
            m[1]
            for line in remote.requirements
            if (m := re.match(r"nvidia-cudnn-cu\d+ ?\(?==([\d.]+)", line))
        ),
        None,
    )
    if cuda is None:
        return None
    return f'{{cuda: "{cuda}", cudnn: ' + (f'"{cudnn}"' if cudnn else "null") + "}"


def refresh_torch(index: str, notes: Notes) -> Iterator[Proposal]:
    by_version: dict[str, list[Wheel]] = {}
    for wheel in wheels(index, "torch"):
        by_version.setdefault(wheel.version, []).append(wheel)
    new = [
        v
        for v in by_version
        if release_key(v) >= OLDEST_TORCH and v not in catalog.torch_releases()
    ]
    for version in (v for v in catalog.torch_releases() if v in by_version):
        for name, tag in PLATFORMS.items():
            there = {wheel.python for wheel in of_release(by_version[version], tag)}
            if more := sorted(
                there - set(catalog.torch_releases()[version].pythons.on(name)), key=python_order
            ):
                notes.add(
                    f"torch {version}: {name} wheels for {', '.join(more)}, which its `pythons` "
                    "lacks"
                )
    # Before the companions are looked for: each costs requests.
    if not new:
        return
    pairs = [companions(index, package) for package in ("torchvision", "torchaudio")]
    with ThreadPoolExecutor(JOBS) as pool:
        for version, record in zip(
            new, pool.map(lambda v: torch_record(v, by_version[v], pairs), new), strict=True
        ):
            notes.add(
                f"torch {version}: the other CUDA flavours in RELEASE.md of PyTorch (official; "
                "official.yaml)"
            )
            yield "releases", version, record


# --- CUDA ---


def compiled_sms(ptxas: bytes) -> list[int]:
    """The SMs that NVIDIA's assembler says it compiles for; it is run, on Linux and x86-64."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ptxas"
        program.write_bytes(ptxas)
        program.chmod(0o700)
        usage = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    # Only the help of this one option: others list SMs too.
    names = re.search(r"--gpu-name.*?Default", usage, re.DOTALL)
    return sorted(
        {int(number) for number in re.findall(r"sm_(\d{2,3})", names[0] if names else "")}
    )


def cuda_record(release: str, compiler: Wheel, headers: Wheel) -> str:
    """A toolkit as `cuda.yaml` holds it, from `ptxas` and `crt/host_config.h`; the drivers are not
    in any wheel.
    """
    remote = RemoteWheel(compiler)
    name = remote.find("bin/ptxas")
    assert name
    numbers = compiled_sms(remote.read(name))
    host = RemoteWheel(headers) if headers != compiler else remote
    header = host.text(host.find("crt/host_config.h") or "")
    gcc = re.search(r"__GNUC__ > (\d+)", header)
    msvc = re.search(r"_MSC_VER < (\d+) \|\| _MSC_VER >= (\d+)", header)
    assert gcc
    assert msvc
    short = ".".join(release.split(".")[:2])
    return (
        f'  "{short}":\n    release: "{release}"\n    sm: [{", ".join(map(str, numbers))}]\n'
        f"    gcc_max: {gcc[1]}\n    msvc_min: {msvc[1]}\n    msvc_max: {int(msvc[2]) - 1}\n"
        "    driver_linux: null\n    driver_windows: null\n"
    )


def refresh_cuda(index: str, notes: Notes) -> Iterator[Proposal]:
    releases: dict[str, Wheel] = {}
    for wheel in wheels(index, "cuda-toolkit"):
        short = ".".join(wheel.version.split(".")[:2])
        newer = short not in releases or release_key(wheel.version) > release_key(
            releases[short].version
        )
        if release_key(wheel.version) >= OLDEST_CUDA and newer:
            releases[short] = wheel
    for short, meta in releases.items():
        if short in catalog.toolkits():
            continue
        # The wheel `cuda-toolkit` is empty: its requirements name the wheels of the parts.
        pins = dict(
            re.findall(
                r"(nvidia-cuda-(?:nvcc|crt)(?:-cu12)?) ?\(?==([\d.]+?)\.\*",
                "\n".join(RemoteWheel(meta).requirements),
            )
        )
        chosen = {}
        for package, version in pins.items():
            there = [w for w in wheels(index, package) if w.version == version]
            if linux := of_release(there, "manylinux.*x86_64"):
                chosen[package.removesuffix("-cu12")] = linux[0]
        if "nvidia-cuda-nvcc" not in chosen:
            notes.add(f"CUDA {meta.version}: the index has no compiler wheel for it")
            continue
        compiler = chosen["nvidia-cuda-nvcc"]
        notes.add(
            f"CUDA {short}: drivers (table in the release notes of the toolkit); archives "
            "(tools/import_redist.py)"
        )
        yield (
            "toolkits",
            short,
            cuda_record(
                ".".join(meta.version.split(".")[:3]),
                compiler,
                chosen.get("nvidia-cuda-crt", compiler),
            ),
        )


# --- cuDNN ---


def cudnn_sms(wheel: RemoteWheel) -> tuple[int, int] | None:
    """Lowest and highest SM with code in every library that has kernels."""
    found = []
    # Libraries of cuDNN 9, then those of cuDNN 8.
    for part in (
        "cnn",
        "ops",
        "adv",
        "cnn_infer",
        "ops_infer",
        "adv_infer",
        "engines_runtime_compiled",
    ):
        name = next((n for n in wheel.names if re.search(rf"/libcudnn_{part}\.so\.\d+$", n)), None)
        if name is None:
            continue
        data = wheel.read(name)
        sections = [s for s in read_elf(data).sections if s.name == ".nv_fatbin" and s.size]
        boxes = [
            box for s in sections for box in fatbin.read_fatbins(data, s.offset, s.offset + s.size)
        ]
        sms = {fatbin.number(sm) for box in boxes for sm in box.sass}
        if sms:
            found.append((min(sms), max(sms)))
    # The highest of the lowest: a GPU needs code in every part of cuDNN.
    if found:
        return (max(low for low, _ in found), max(high for _, high in found))
    return None


def cudnn_record(short: str, by_major: dict[int, Wheel]) -> str | None:
    """A release as `cudnn.yaml` holds it; None: none of its wheels has device code that can be
    read.
    """
    sms = cudnn_sms(RemoteWheel(by_major[max(by_major)]))
    if sms is None:
        return None
    newest = by_major[max(by_major)]
    lines = [
        f'  "{short}":',
        f'    version: "{newest.version}"',
        f"    sm_min: {sms[0]}",
        f"    sm_max: {sms[1]}",
        f"    cuda_majors: [{', '.join(map(str, sorted(by_major)))}]",
        "    wheels:",
    ]
    for major, wheel in sorted(by_major.items()):
        lines += [f"      {major}:", f"        package: nvidia-cudnn-cu{major}"]
        lines += [f"        file: {wheel.file}", f"        sha256: {wheel.sha256}"]
    return "\n".join(lines) + "\n"


def refresh_cudnn(index: str, notes: Notes) -> Iterator[Proposal]:
    """The newest release, and those that official wheels of PyTorch name: each costs some 300 MB to
    read.
    """
    found: dict[str, dict[int, Wheel]] = {}
    for major in (11, 12, 13):
        for wheel in of_release(wheels(index, f"nvidia-cudnn-cu{major}"), "manylinux.*x86_64"):
            short = ".".join(wheel.version.split(".")[:3])
            old = found.setdefault(short, {}).get(major)
            if release_key(wheel.version) >= OLDEST_CUDNN and (
                old is None or release_key(wheel.version) > release_key(old.version)
            ):
                found[short][major] = wheel
    official = {
        str(each.cudnn)
        for release in catalog.torch_releases().values()
        for each in release.official
    }
    named = {
        short
        for short in found
        if any(wheel.version in official for wheel in found[short].values())
    }
    newest = max((short for short in found if found[short]), key=release_key)
    for short in sorted(named | {newest}, key=release_key):
        if short in catalog.cudnn_releases():
            continue
        record = cudnn_record(short, found[short])
        if record is None:
            notes.add(f"cuDNN {short}: no device code could be read; not proposed")
            continue
        yield "releases", short, record


# --- official wheels ---


def arch_flags(remote: RemoteWheel) -> list[str]:
    """The answer of `torch.cuda.get_arch_list()` for a wheel: `sm_75`, `compute_120`."""
    name = remote.find("torch/lib/libtorch_python.so")
    # The list stands as one text in the library: the longest run of such words is it.
    if name:
        flags = re.findall(rb"(?:(?:sm|compute)_\d{2,3}[af]?[ ;]?){2,}", remote.read(name))
    else:
        flags = []
    return max(flags, key=len, default=b"").decode().split()


def official_record(version: str, platform: str, wheel: Wheel, pythons: Sequence[str]) -> str:
    """A wheel of the index as `official.yaml` holds it."""
    remote = RemoteWheel(wheel)
    cuda = version_facts(remote, "torch").get("cuda")
    if cuda and remote.find("libtorch_cuda.so"):
        flags = arch_flags(remote)
    else:
        flags = []
    flavour = f'"{cuda}"' if cuda else "null"
    sass = [flag.removeprefix("sm_") for flag in flags if flag.startswith("sm_")]
    ptx = [flag.removeprefix("compute_") for flag in flags if flag.startswith("compute_")]
    return (
        f'  - {{torch: "{version}", platform: {platform}, index: pypi, cuda: {flavour}, '
        f"sm: [{', '.join(sass)}], ptx: [{', '.join(ptx)}], pythons: {quoted(pythons)},\n"
        f"     file: {wheel.file}, sha256: {wheel.sha256}, source: wheel}}\n"
    )


def refresh_official(index: str, notes: Notes) -> Iterator[Proposal]:
    del notes
    have = {(row.torch, row.platform) for row in catalog.official().wheels if row.index == "pypi"}
    by_key: dict[tuple[str, str], list[Wheel]] = {}
    for wheel in wheels(index, "torch"):
        for platform, tag in OFFICIAL.items():
            if release_key(wheel.version) >= OLDEST_TORCH and re.fullmatch(tag, wheel.platform):
                by_key.setdefault((wheel.version, platform), []).append(wheel)
    new = sorted(
        (key for key in by_key if key not in have), key=lambda key: (release_key(key[0]), key[1])
    )

    def record(key: tuple[str, str]) -> str:
        pythons = sorted({wheel.python for wheel in by_key[key]}, key=python_order)
        wheel = probe(by_key[key], OFFICIAL[key[1]])
        assert wheel
        return official_record(*key, wheel, pythons)

    with ThreadPoolExecutor(JOBS) as pool:
        for key, text in zip(new, pool.map(record, new), strict=True):
            yield "wheels", key[0], text


def refresh_toolkits(index: str, notes: Notes) -> Iterator[Proposal]:
    return wheel_toolkits.records(index, notes.add)


def refresh_pythons(_index: str, _notes: Notes) -> Iterator[Proposal]:
    """Written whole: see `refreshed`."""
    return iter(())


PARTS: dict[str, tuple[str, Callable[[str, Notes], Iterator[Proposal]]]] = {
    "torch": ("torch.yaml", refresh_torch),
    "cuda": ("cuda.yaml", refresh_cuda),
    "toolkits": ("toolkit_wheels.yaml", refresh_toolkits),
    "cudnn": ("cudnn.yaml", refresh_cudnn),
    "official": ("official.yaml", refresh_official),
    "pythons": ("standalone_pythons.yaml", refresh_pythons),
}


def refreshed_makers(checkouts: Mapping[str, Path], notes: Notes) -> tuple[Path, str, str]:
    """The file of other makers before and after."""
    path = FOLDER / "makers.yaml"
    before = path.read_text(encoding="utf-8")
    return path, before, other_makers.refreshed(before, checkouts, notes.add)


def checkout_of(text: str) -> tuple[str, Path]:
    """The maker and the folder of `--checkout MAKER=FOLDER`."""
    maker, _, folder = text.partition("=")
    if maker not in other_makers.MAKERS or not folder:
        known = ", ".join(other_makers.MAKERS)
        raise argparse.ArgumentTypeError(f"{text!r} is not MAKER=FOLDER; makers: {known}")
    return maker, Path(folder)


def refreshed(name: str, index: str, notes: Notes) -> tuple[Path, str, str]:
    """A file of the catalogue before and after."""
    file, propose = PARTS[name]
    path = FOLDER / file
    before = after = path.read_text(encoding="utf-8")
    if name == "pythons":
        return path, before, standalone_pythons.text(index)
    for section, key, record in propose(index, notes):
        if name == "official":
            after = append(after, record)
        else:
            after = insert(after, section, key, record)
    return path, before, after


def append(text: str, record: str) -> str:
    return text.replace("wheels: []\n", "wheels:\n").rstrip("\n") + "\n" + record


def by_hand() -> Iterator[str]:
    """Facts that no wheel of an index says and that the catalogue lacks or keeps by hand."""
    nulls = [name for name, toolkit in catalog.toolkits().items() if toolkit.driver_linux is None]
    if nulls:
        yield f"cuda.yaml: the driver of CUDA {', '.join(nulls)}, from NVIDIA's release notes"
    arm = {
        row.torch
        for row in catalog.official().wheels
        if row.platform == "linux-aarch64" and row.cuda
    }
    new = [name for name in catalog.torch_releases() if release_key(name) >= release_key("2.4.0")]
    if missing := [name for name in new if not arm & {name, name.rpartition(".")[0]}]:
        yield (
            f"official.yaml: wheels with CUDA for linux-aarch64 of torch {', '.join(missing)}, "
            "if there are any"
        )
    yield "makers.yaml: its other makers than those of --checkout"
    yield "gpus.yaml, paste.yaml: names of cards, what tools print"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a patch, or with --write applies it; writes nothing if anything fails."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="refresh-catalogue", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; without one, all"
    )
    parser.add_argument(
        "--index", default=PYPI, help="a package index with PEP 691's JSON (default: %(default)s)"
    )
    parser.add_argument(
        "--write", action="store_true", help="change the files instead of printing the patch"
    )
    parser.add_argument(
        "--check", action="store_true", help="end with exit code 1 where there is something new"
    )
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        type=checkout_of,
        metavar="MAKER=FOLDER",
        help="a clone of another maker's recipes: read makers.yaml's rows from it "
        f"({', '.join(other_makers.MAKERS)}); without parts, nothing else is read",
    )
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}; known: {', '.join(PARTS)}")
    notes = Notes()
    parts = arguments.parts
    if not parts and not arguments.checkout:
        parts = list(PARTS)
    try:
        done = [refreshed(name, arguments.index, notes) for name in parts]
        if arguments.checkout:
            done.append(refreshed_makers(dict(arguments.checkout), notes))
    except FarmError as error:
        print(f"refresh-catalogue: {error}", file=sys.stderr)
        return error.exit_code
    for path, before, after in done:
        place = path.relative_to(FOLDER.parents[1]).as_posix()
        patch = difflib.unified_diff(
            before.splitlines(True), after.splitlines(True), f"a/{place}", f"b/{place}"
        )
        sys.stdout.writelines(patch)
        if arguments.write and before != after:
            path.write_text(after, encoding="utf-8", newline="\n")
    print("kept by hand:", *by_hand(), sep="\n  ", file=sys.stderr)
    if notes.lines:
        print("to do by hand:", *notes.lines, sep="\n  ", file=sys.stderr)
    same = not notes.lines and all(before == after for _, before, after in done)
    if same:
        print("nothing new", file=sys.stderr)
    return int(arguments.check and not same)


if __name__ == "__main__":
    sys.exit(main())
