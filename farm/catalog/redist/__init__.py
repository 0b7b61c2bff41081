"""NVIDIA's redist archives: what the `nvidia` toolkit provider installs, pinned by sha256.

One YAML file per product version is beside this module (`cuda-11.8.0.yaml`, `cudnn-8.7.0.yaml`).
They are written by `tools/import_redist.py` from the `redistrib_<version>.json` manifests that
NVIDIA publishes beside the archives; each file names its source. An archive holds a part of the
toolkit and never a driver.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from farm.base.errors import UsageError
from farm.base.yamlfile import Model
from farm.base.yamlfile import load as load_file

FOLDER = Path(__file__).parent
Platform = Literal["linux-x86_64", "linux-sbsa", "linux-aarch64", "windows-x86_64"]
MANIFEST_SCHEMA = 1
"""The number that `dockerfiles/scripts/install_toolkit.py` accepts."""
# On Linux the installer must know the folder below targets/ of NVIDIA's runfile.
_TARGETS = {
    "linux-x86_64": "x86_64-linux",
    "linux-sbsa": "sbsa-linux",
    "linux-aarch64": "aarch64-linux",
}
# The two Windows archives that do not go to the root of the toolkit.
_PLACES = {"nsight_nvtx": "nvtx", "visual_studio_integration": "visual-studio"}

_STEP = "[A-Za-z0-9_+-][A-Za-z0-9._+-]*"
ArchivePath = Annotated[str, Field(max_length=300, pattern=rf"^({_STEP}/)*{_STEP}\.(tar\.xz|zip)$")]
"""It becomes part of a URL; the installer unpacks these two kinds and no others."""
Release = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4000)]


class Archive(Model):
    """An archive to download: `size` in bytes, `sha256` in lower-case hex."""

    component: Line
    version: Line
    url: str = Field(pattern=r"^https://[!-~]{1,400}$")
    sha256: Sha256
    size: int = Field(gt=0)


class RedistFile(Model):
    """One archive: path below the base URL, sha256 in hex, size in bytes."""

    path: ArchivePath
    sha256: Sha256
    size: int = Field(gt=0)


class RedistComponent(Model):
    """One component; cuDNN has one more level below the platform, `cuda11` and the like."""

    version: Release
    license: str
    platforms: dict[
        Platform, RedistFile | dict[Annotated[str, Field(pattern=r"^cuda[1-9][0-9]$")], RedistFile]
    ]

    def file(self, platform: str, cuda_major: int | None) -> RedistFile | None:
        """The archive for a platform and, where there is one for each, a CUDA major; None: there is
        none.
        """
        entry: RedistFile | dict[str, RedistFile] | None
        entry = self.platforms.get(platform)  # type: ignore[call-overload]
        if isinstance(entry, dict):
            return entry.get(f"cuda{cuda_major}")
        return entry


class Redist(Model):
    """One version of one product: the content of one YAML file."""

    product: Annotated[str, Field(pattern=r"^[a-z]+$")]
    version: Release
    base_url: Annotated[str, Field(pattern=r"^https://[^\s?#@]+/$")]
    components: Annotated[dict[str, RedistComponent], Field(min_length=1)]


@functools.cache
def _index() -> Mapping[str, tuple[str, ...]]:
    """Product -> its versions, oldest first, from the names of the files."""
    by_product: dict[str, list[str]] = {}
    for path in FOLDER.glob("*.yaml"):
        product, _, version = path.stem.partition("-")
        by_product.setdefault(product, []).append(version)
    index = {}
    for product, versions in by_product.items():
        # By numbers, not by letters: 12.10 comes after 12.9.
        index[product] = tuple(sorted(versions, key=_numbers))
    return index


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def versions(product: str) -> tuple[str, ...]:
    """The versions of `cuda` or `cudnn` whose archives are known, oldest first."""
    return _index()[product]


@functools.cache
def load(product: str, version: str) -> Redist:
    """Everything known of one product version."""
    return load_file(FOLDER / f"{product}-{version}.yaml", Redist)


@functools.cache
def components(product: str, version: str, platform: str) -> tuple[str, ...]:
    """The names of the components that have an archive for `platform`, sorted."""
    all_components = load(product, version).components
    able = [name for name, component in all_components.items() if platform in component.platforms]
    return tuple(sorted(able))


def has_archive(
    product: str, version: str, platform: str, component: str, cuda_major: int | None = None
) -> bool:
    """True if `archives` would find this component's archive."""
    if version not in versions(product):
        return False
    listing = load(product, version).components.get(component)
    return listing is not None and listing.file(platform, cuda_major) is not None


def archives(
    product: str, version: str, platform: str, names: Sequence[str], cuda_major: int | None = None
) -> list[Archive]:
    """The archives of NVIDIA's component `names`, each once; `cuda_major` for cuDNN. UsageError:
    one has none.
    """
    redist = load(product, version)
    selected = []
    for name in dict.fromkeys(names):
        fault = f"{product} {version}: {name} has no archive for {platform}"
        component = redist.components.get(name)
        if component is None:
            raise UsageError(fault, hint=f"there are: {', '.join(sorted(redist.components))}")
        file = component.file(platform, cuda_major)
        if file is None:
            if cuda_major:
                fault += f" and CUDA {cuda_major}"
            raise UsageError(fault, hint=f"there are: {', '.join(component.platforms)}")
        archive = Archive(
            component=name,
            version=component.version,
            url=redist.base_url + file.path,
            sha256=file.sha256,
            size=file.size,
        )
        selected.append(archive)
    return selected


def install_manifest(archives: Sequence[Archive], platform: str) -> dict[str, Any]:
    """The JSON document that `dockerfiles/scripts/install_toolkit.py` reads.

    `{schema, layout, target (Linux only), archives}`, an archive being `{component, version, url,
    sha256, size, kind, place}`. `kind` is `tar.xz` or `zip`; `place` says where in the prefix the
    files go: `toolkit` (its root), `nvtx` (below NvToolsExt) or `visual-studio` (below
    extras/visual_studio_integration). Raises UsageError: two archives of one component would be
    unpacked into the same place.
    """
    names = [archive.component for archive in archives]
    if len(names) > len(set(names)):
        raise UsageError(
            f"a component is there with two different archives: {', '.join(sorted(names))}"
        )
    manifest: dict[str, Any] = {
        "schema": MANIFEST_SCHEMA,
        "layout": platform.partition("-")[0],
    }
    if platform in _TARGETS:
        manifest["target"] = _TARGETS[platform]
    rows = []
    for archive in archives:
        row = archive.model_dump()
        row["kind"] = "zip" if archive.url.endswith(".zip") else "tar.xz"
        row["place"] = _PLACES.get(archive.component, "toolkit")
        rows.append(row)
    manifest["archives"] = rows
    return manifest
