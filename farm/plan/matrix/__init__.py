"""Channels: pinned stacks and the variants that they offer (`ci/matrix.yaml`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from farm.base import resources as shipped
from farm.base.errors import UsageError
from farm.base.text import nearest
from farm.base.yamlfile import load, where
from farm.plan import recipe
from farm.plan.matrix.channel import Build, Channel, Pins, RuleError
from farm.plan.matrix.shape import ChannelText, MatrixText
from farm.plan.options import OPTIONS
from farm.plan.variant import Variant

__all__ = ["Build", "Channel", "Matrix", "Pins", "load_matrix"]

SHIPPED = shipped.ROOT / "ci" / "matrix.yaml"
REQUIRED = ("packages", "platforms", "gpus", "cpus", "pythons", "toolkit", "cuda")


@dataclass(frozen=True)
class Matrix:
    """The channels in the order of the file."""

    channels: dict[str, Channel]

    def channel(self, name: str) -> Channel:
        """The channel called `name`.

        Raises:
            UsageError: There is none; the nearest names are given.
        """
        if name not in self.channels:
            near = nearest(name, list(self.channels))
            hint = f"nearest: {', '.join(near)}" if near else f"channels: {', '.join(self.channels)}"
            raise UsageError(f"unknown channel {name!r}", hint=hint)
        return self.channels[name]

    def default_channel(
        self, package: str, variant: Variant, platform: str, torch: str | None = None, cuda: str | None = None
    ) -> str:
        """The first channel that offers the package and variant on the platform, with the PyTorch and CUDA asked for.

        When none has both, the first with the PyTorch, then with the CUDA, then any. When none offers the variant, the
        first that offers the same GPU and CPU, then the first with the GPU, then the first with the package: its rules
        then say why not.

        Raises:
            UsageError: No channel builds the package for the platform.
        """
        fitting = [c for c in self.channels.values() if package in c.packages and platform in c.platforms]
        if not fitting:
            raise UsageError(f"no channel of ci/matrix.yaml builds {package!r} for {platform}")

        def distance(channel: Channel) -> tuple[int, bool, bool]:
            if offers := channel.cudas(package, variant, platform):
                other_torch = torch not in (None, channel.text.options.get("torch"))
                return 0, other_torch, cuda is not None and cuda not in offers
            alike = any(b.variant.group == variant.group for b in channel.builds if b.platform == platform)
            return (1 if alike else 2 if variant.gpu in channel.gpus else 3), False, False

        return min(fitting, key=distance).name  # the first of equals

    def own(self) -> list[str]:
        """The channels that do not come with the farm; none for a project without a matrix of its own."""
        farms = load(SHIPPED, MatrixText).channels
        return [name for name in self.channels if name not in farms]

    def by_alias(self, name: str, channel: str | None = None) -> Build:
        """The build of an alias, as `farm matrix --format names` prints it: `main/pytorch-…` or `pytorch-…`.

        Without a channel in the name or in `channel`, the first channel that has the alias is taken.

        Raises:
            UsageError: There is none; the nearest are given.
        """
        head, slash, alias = name.rpartition("/")
        wanted = self.channel(head).name if slash else channel
        # Reversed, so that of equal aliases the first channel's stays.
        builds = {build.alias: build for build in reversed(list(self.builds(wanted)))}
        if alias not in builds:
            near = nearest(alias, list(builds))
            hint = f"nearest: {', '.join(near)}" if near else "farm matrix --format names lists them"
            raise UsageError(f"unknown build {name!r}" + (f" in {wanted}" if wanted else ""), hint=hint)
        return builds[alias]

    def builds(self, channel: str | None = None) -> Iterator[Build]:
        """Every build of one channel or of all, in the order of the file.

        Raises:
            UsageError: There is no such channel.
        """
        for one in self.channels.values() if channel is None else [self.channel(channel)]:
            yield from one.builds


def load_matrix(project: Path) -> Matrix:
    """Read `ci/matrix.yaml`; a file whose content is unchanged is not read again.

    Raises:
        UsageError: It is wrong; file, line and the likely intended key or word are given.
    """
    recipe.use_project(project)
    path = shipped.path(project, "ci/matrix.yaml")
    return _load(path, path.read_bytes() if path.is_file() else b"", recipe.names())


@lru_cache(maxsize=4)
def _load(path: Path, content: bytes, packages: tuple[str, ...]) -> Matrix:  # noqa: ARG001 the cache goes by them
    text = load(path, MatrixText)
    written = text.channels
    if text.defaults:
        # A channel of the project is in the place of the farm's of that name.
        # The project's channels come first: of two that fit, `default_channel` takes the first.
        written = written | {
            name: channel for name, channel in load(SHIPPED, MatrixText).channels.items() if name not in written
        }
    merged: dict[str, ChannelText] = {}
    owners: dict[str, dict[str, str]] = {}
    for name in written:
        _merge(path, written, name, (), merged, owners)
    channels = {}
    for name in written:
        try:
            _check_complete(merged[name])
            channels[name] = Channel(name, merged[name])
        except RuleError as error:
            owner = owners[name].get(str(error.loc[0]), name) if error.loc else name
            heir = f", inherited by {name}" if owner != name else ""
            loc = ("channels", owner, *error.loc)
            dotted = ".".join(map(str, loc))
            raise UsageError(f"{where(path, *loc)}: {dotted}{heir}: {error}") from error
    return Matrix(channels)


def _merge(
    path: Path,
    written: dict[str, ChannelText],
    name: str,
    heirs: tuple[str, ...],
    merged: dict[str, ChannelText],
    owners: dict[str, dict[str, str]],
) -> None:
    """Fill `merged[name]`, its parents first, and `owners[name]`: which channel each key was taken from.

    Raises:
        UsageError: A parent does not exist, or a channel extends itself through others.
    """
    if name in merged:
        return
    own = written[name]
    # What is written, not what differs from a default: a channel may set a key back to null.
    given = own.model_fields_set
    owners[name] = dict.fromkeys(given, name)
    if own.extends is None:
        merged[name] = own
        return
    chain = (*heirs, name)
    fault = None
    if own.extends in chain:
        fault = f"a cycle of inheritance: {' -> '.join((*chain, own.extends))}"
    elif own.extends not in written:
        near = nearest(own.extends, list(written))
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(written)}"
        fault = f"unknown channel {own.extends!r}; {hint}"
    if fault:  # only now, since `where` reads the file again
        raise UsageError(f"{where(path, 'channels', name, 'extends')}: channels.{name}.extends: {fault}")
    _merge(path, written, own.extends, chain, merged, owners)
    merged[name] = merged[own.extends].model_copy(update={key: getattr(own, key) for key in given})
    owners[name] = owners[own.extends] | owners[name]


def _check_complete(text: ChannelText) -> None:
    needed = list(REQUIRED)
    for package in text.packages:
        if package not in recipe.names():
            near = recipe.near(package)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(recipe.names())}"
            raise RuleError(f"no recipe for package {package!r}; {hint}", "packages")
    for index, rule in enumerate(text.include):
        if unknown := [package for package in rule.packages or () if package not in recipe.names()]:
            raise RuleError(f"no recipe for package {unknown[0]!r}", "include", index, "packages")
    for package, name in text.recipes.items():
        if name not in recipe.names():
            near = recipe.near(name) or list(recipe.names())
            raise RuleError(f"there is no recipe {name!r}; known: {', '.join(near)}", "recipes", package)
    for name in (text.recipes.get(package, package) for package in text.packages):
        built = recipe.recipe(name)
        if not recipe.is_replaced(name) and built.torch_release not in (None, torch := text.options["torch"]):
            fault = f"{name} is built from sources of torch {built.torch_release}, not {torch}"
            raise RuleError(fault, "torch")
    # A channel of packages that do not need PyTorch pins no release of it.
    with_torch = [p for p in text.packages if OPTIONS["torch"].applies(recipe.recipe(text.recipes.get(p, p)))]
    needed += ["torch"] if with_torch else []
    if missing := [key for key in needed if not getattr(text, key)]:
        also = f", nor has {text.extends}" if text.extends else ""
        what = (
            f'; {with_torch[0]} needs PyTorch: add `torch: "2.6.0"`, or another release' if "torch" in missing else ""
        )
        raise RuleError(f"the channel has no {' and no '.join(missing)}{also}{what}")
