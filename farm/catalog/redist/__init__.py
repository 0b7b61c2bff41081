"""NVIDIA's redist archives: what the `nvidia` toolkit provider installs, pinned by sha256.

One YAML file per product version is beside this module (`cuda-11.8.0.yaml`, `cudnn-8.7.0.yaml`). They are
written by `tools/import_redist.py` from the `redistrib_<version>.json` manifests that NVIDIA publishes beside
the archives; each file names its source. An archive holds a part of the toolkit and never a driver.
"""

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Protocol, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from farm.base import yamlfile
from farm.base.errors import UsageError
from farm.base.yamlfile import Loader

Platform = Literal["linux-x86_64", "linux-sbsa", "linux-aarch64", "windows-x86_64"]

MANIFEST_SCHEMA = 1
"""The number that `dockerfiles/scripts/install_toolkit.py` accepts."""

# platform -> what else the installer must know: on Linux the folder below targets/ of NVIDIA's runfile
_LAYOUTS: Mapping[str, Mapping[str, str]] = {
    "linux-x86_64": {"target": "x86_64-linux"},
    "linux-sbsa": {"target": "sbsa-linux"},
    "linux-aarch64": {"target": "aarch64-linux"},
    "windows-x86_64": {},
}
# The two Windows archives that do not go to the root of the toolkit.
_PLACES: Mapping[str, str] = {"nsight_nvtx": "nvtx", "visual_studio_integration": "visual-studio"}
_KINDS = ("tar.xz", "zip")


def _relative(path: str) -> str:
    # The path becomes part of a URL.
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or ":" in path:
        raise ValueError("must be a relative path without '..'")
    # The installer unpacks these two and no others.
    if not path.endswith(tuple("." + kind for kind in _KINDS)):
        raise ValueError(f"must end in one of {_KINDS}")
    return path


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RedistFile(_Model):
    """One archive: path below the base URL, sha256 in hex, size in bytes."""

    path: Annotated[str, Field(max_length=300), AfterValidator(_relative)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(gt=0, strict=True)]


CudaVariant = Annotated[str, Field(pattern=r"^cuda[1-9][0-9]$")]


class RedistComponent(_Model):
    """One component; cuDNN has one more level below the platform, `cuda11` and the like."""

    version: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)+$")]
    license: str
    platforms: Annotated[dict[Platform, RedistFile | dict[CudaVariant, RedistFile]], Field(min_length=1)]


class Redist(_Model):
    """One version of one product: the content of one YAML file."""

    product: Annotated[str, Field(pattern=r"^[a-z]+$")]
    version: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)+$")]
    base_url: Annotated[str, Field(pattern=r"^https://[^\s?#@]+/$")]
    components: Annotated[dict[str, RedistComponent], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_archive_one_place(self) -> Self:
        paths = [
            file.path
            for component in self.components.values()
            for entry in component.platforms.values()
            for file in ([entry] if isinstance(entry, RedistFile) else entry.values())
        ]
        if len(paths) != len(set(paths)):
            raise ValueError("an archive is named twice")
        return self


@dataclass(frozen=True)
class Archive:
    """An archive to download: `size` in bytes, `sha256` in lower-case hex, `url` complete."""

    component: str
    version: str
    url: str
    sha256: str
    size: int


class Pinned(Protocol):
    """An archive here or in a plan."""

    @property
    def component(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...


def _folder() -> Path:
    return Path(__file__).parent


def _choose(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name: the nearest ones, or all where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(names)}"
    return UsageError(f"{what}: unknown {name!r}", hint=hint)


@functools.cache
def _index() -> Mapping[str, tuple[str, ...]]:
    """Product -> its versions, oldest first, from the names of the files."""
    found: dict[str, list[str]] = {}
    for entry in _folder().iterdir():
        if entry.name.endswith(".yaml"):
            product, _, version = entry.name.removesuffix(".yaml").partition("-")
            found.setdefault(product, []).append(version)
    # By numbers, not by letters: 12.10 comes after 12.9.
    order = {p: sorted(vs, key=lambda v: [int(n) for n in v.split(".")]) for p, vs in found.items()}
    return {product: tuple(order[product]) for product in sorted(order)}


def versions(product: str) -> tuple[str, ...]:
    """The versions of `cuda` or `cudnn` whose archives are known, oldest first.

    Raises:
        UsageError: no such product.
    """
    if product not in _index():
        raise _choose("redist product", product, _index())
    return _index()[product]


def parse(text: str, origin: str) -> Redist:
    """Reads one redist YAML.

    Raises:
        UsageError: not YAML, or not of this shape; the message names `origin` and the field.
    """
    return _read(lambda: yaml.load(text, Loader=Loader), origin)  # noqa: S506 a safe loader


def _read(read: Callable[[], Any], origin: str) -> Redist:
    try:
        return Redist.model_validate(read())
    except yaml.YAMLError as error:
        raise UsageError(f"{origin}: not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{origin}: {where or 'document'}: {first['msg']}",
            hint="write it again with tools/import_redist.py from NVIDIA's manifest",
        ) from error


@functools.cache
def load(product: str, version: str) -> Redist:
    """Everything known of one product version.

    Raises:
        UsageError: unknown product or version (with the nearest names), or a damaged file.
    """
    if version not in versions(product):
        raise _choose(f"{product} redist version", version, versions(product))
    name = f"{product}-{version}.yaml"
    redist = _read(lambda: yamlfile.plain(_folder() / name), name)
    # The name of the file is what is looked up: a copy under a wrong name would give the archives of another version.
    if (redist.product, redist.version) != (product, version):
        raise UsageError(f"{name}: says that it is {redist.product} {redist.version}")
    return redist


@functools.cache
def components(product: str, version: str, platform: str) -> tuple[str, ...]:
    """The names of the components that have an archive for `platform`, sorted.

    Raises:
        UsageError: unknown product, version or platform.
    """
    _check_platform(platform)
    redist = load(product, version)
    return tuple(sorted(n for n, c in redist.components.items() if platform in c.platforms))


def has_archive(product: str, version: str, platform: str, component: str, cuda_major: int | None = None) -> bool:
    """True if `archives` would find this component's archive."""
    if version not in versions(product):
        return False
    found = load(product, version).components.get(component)
    entry = found.platforms.get(platform) if found else None  # type: ignore[call-overload]
    return isinstance(entry, RedistFile) or (entry is not None and f"cuda{cuda_major}" in entry)


def archives(
    product: str, version: str, platform: str, components: Sequence[str], cuda_major: int | None = None
) -> list[Archive]:
    """The archives of `components`, in the order asked for, each once.

    Args:
        product: `cuda` or `cudnn`.
        version: The product's version, `11.8.0`; not a component's.
        platform: NVIDIA's name: `linux-x86_64`, `linux-sbsa`, `linux-aarch64`, `windows-x86_64`.
        components: NVIDIA's names: `cuda_nvcc`, `libcublas`, `cudnn`.
        cuda_major: For which CUDA; needed where an archive exists once per CUDA major (cuDNN), else unused.

    Raises:
        UsageError: an unknown name (with the nearest), or no archive for this platform or CUDA major.
    """
    _check_platform(platform)
    redist = load(product, version)
    chosen = []
    for name in dict.fromkeys(components):
        what = f"{product} {version}"
        if name not in redist.components:
            raise _choose(f"{what} component", name, redist.components)
        component = redist.components[name]
        entry = component.platforms.get(platform)  # type: ignore[call-overload]
        if entry is None:
            have = ", ".join(component.platforms)
            raise UsageError(f"{what}: {name} has no archive for {platform}", hint=f"available for: {have}")
        file = entry if isinstance(entry, RedistFile) else entry.get(f"cuda{cuda_major}")
        if file is None:
            majors = ", ".join(variant.removeprefix("cuda") for variant in entry)
            asked = "no CUDA major was given" if cuda_major is None else f"none for CUDA {cuda_major}"
            raise UsageError(
                f"{what}: {name} for {platform} is made for each CUDA major, and {asked}",
                hint=f"available for CUDA {majors}",
            )
        chosen.append(Archive(name, component.version, redist.base_url + file.path, file.sha256, file.size))
    return chosen


def install_manifest(archives: Sequence[Pinned], platform: str) -> dict[str, Any]:
    """The JSON document that `dockerfiles/scripts/install_toolkit.py` reads.

    Shape: `{schema, layout, target (Linux only), archives: [row...]}`, a row being
    `{component, version, url, sha256, size, kind, place}`.
    `kind` is `tar.xz` or `zip`; `place` says where in the prefix the files go: `toolkit` (its root), `nvtx`
    (below NvToolsExt) or `visual-studio` (below extras/visual_studio_integration).

    Raises:
        UsageError: unknown platform, no archive, or two archives of one component.
    """
    _check_platform(platform)
    names = [archive.component for archive in archives]
    if not names:
        raise UsageError("a toolkit needs at least one component")
    for name in names:
        # Both would be unpacked into the same place.
        if names.count(name) > 1:
            raise UsageError(f"component {name} is requested with two different archives")
    rows = [
        {
            "component": archive.component,
            "version": archive.version,
            "url": archive.url,
            "sha256": archive.sha256,
            "size": archive.size,
            "kind": next(kind for kind in _KINDS if archive.url.endswith("." + kind)),
            "place": _PLACES.get(archive.component, "toolkit"),
        }
        for archive in archives
    ]
    return {"schema": MANIFEST_SCHEMA, "layout": platform.partition("-")[0], **_LAYOUTS[platform], "archives": rows}


def _check_platform(platform: str) -> None:
    if platform not in _LAYOUTS:
        raise _choose("redist platform", platform, _LAYOUTS)
