"""The matrix: the channels of `ci/matrix.yaml` with what they inherit, and all of their builds."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from farm.base import resources
from farm.base.errors import UsageError
from farm.base.text import nearest
from farm.base.yamlfile import load, read_bounded, where
from farm.plan import recipe
from farm.plan.channel import Build, Channel, RuleError
from farm.plan.channel_text import REQUIRED, ChannelText, MatrixText
from farm.plan.options import OPTIONS
from farm.plan.variant import Variant

SHIPPED = resources.ROOT / "ci" / "matrix.yaml"


@dataclass(frozen=True)
class Matrix:
    """The channels in the order of the file; `faults` says which packages were left out, and
    why.
    """

    channels: dict[str, Channel]
    faults: tuple[str, ...] = ()

    def channel(self, name: str) -> Channel:
        """The channel called `name`. Raises UsageError: there is none; the nearest names are
        given.
        """
        if name not in self.channels:
            near = nearest(name, list(self.channels))
            if near:
                hint = f"nearest: {', '.join(near)}"
            else:
                hint = f"channels: {', '.join(self.channels)}"
            raise UsageError(f"unknown channel {name!r}", hint=hint)
        return self.channels[name]

    def default_channel(
        self,
        package: str,
        variant: Variant,
        platform: str,
        torch: str | None = None,
        cuda: str | None = None,
    ) -> str:
        """The first channel that offers the package and variant on the platform, with the PyTorch
        and CUDA asked for.

        When none has both, the first with the PyTorch, then with the CUDA, then any. When none
        offers the variant, the first that offers the same GPU and CPU, then the first with the GPU,
        then the first with the package: its rules then say why not. Raises UsageError: no channel
        builds the package for the platform.
        """
        fitting = [
            c for c in self.channels.values() if package in c.packages and platform in c.platforms
        ]
        if not fitting:
            raise UsageError(f"no channel of ci/matrix.yaml builds {package!r} for {platform}")

        def distance(channel: Channel) -> tuple[int, bool, bool]:
            if offers := channel.cudas(package, variant, platform):
                other_torch = torch not in (None, channel.text.options.get("torch"))
                return 0, other_torch, cuda is not None and cuda not in offers
            alike = any(
                b.variant.group == variant.group for b in channel.builds if b.platform == platform
            )
            return (1 if alike else 2 if variant.gpu in channel.gpus else 3), False, False

        return min(fitting, key=distance).name  # the first of equals

    def own(self) -> list[str]:
        """The channels that do not come with the farm; none for a project without a matrix of its
        own.
        """
        farms = load(SHIPPED, MatrixText).channels
        return [name for name in self.channels if name not in farms]

    def by_alias(self, name: str, channel: str | None = None) -> Build:
        """The build of an alias, as `farm matrix --format names` prints it: `main/pytorch-…` or
        `pytorch-…`.

        The first channel that has it, where none is named. Raises UsageError: there is none; the
        nearest are given.
        """
        head, slash, alias = name.rpartition("/")
        channel_name = self.channel(head).name if slash else channel
        # Reversed, so that of equal aliases the first channel's stays.
        builds = {build.alias: build for build in reversed(list(self.builds(channel_name)))}
        if alias not in builds:
            near = nearest(alias, list(builds))
            if near:
                hint = f"nearest: {', '.join(near)}"
            else:
                hint = "farm matrix --format names lists them"
            raise UsageError(
                f"unknown build {name!r}" + (f" in {channel_name}" if channel_name else ""),
                hint=hint,
            )
        return builds[alias]

    def builds(self, channel: str | None = None) -> Iterator[Build]:
        """The builds of one channel or of all, in the order of the file. Raises UsageError: there
        is none.
        """
        for source in self.channels.values() if channel is None else [self.channel(channel)]:
            yield from source.builds


def load_matrix(project: Path) -> Matrix:
    """Read `ci/matrix.yaml`, again if it changed. Raises UsageError: it is wrong; file and line are
    given.
    """
    recipe.use_project(project)
    path = resources.path(project, "ci/matrix.yaml")
    return _load(path, read_bounded(path), recipe.names())


@lru_cache(maxsize=4)
def _load(path: Path, content: bytes, packages: tuple[str, ...]) -> Matrix:  # noqa: ARG001 the cache goes by them
    text = load(path, MatrixText)
    written = text.channels
    if text.defaults:
        # A channel of the project is in the place of the farm's of that name.
        # The project's channels come first: of two that fit, `default_channel` takes the first.
        written = {**written, **load(SHIPPED, MatrixText).channels, **written}
    channels = {}
    faults: dict[str, str] = {}
    for name in written:
        merged = _merged(path, written, name)
        if name in text.channels:
            merged = _without_faulty(path, name, merged, faults)
        try:
            _check_complete(merged)
            channels[name] = Channel(name, merged)
        except RuleError as error:
            owner = name
            # The key is written in the nearest channel of the chain that has it.
            while (
                error.loc
                and error.loc[0] not in written[owner].model_fields_set
                and written[owner].extends
            ):
                owner = str(written[owner].extends)
            heir = f", inherited by {name}" if owner != name else ""
            loc = ("channels", owner, *error.loc)
            raise UsageError(
                f"{where(path, *loc)}: {'.'.join(map(str, loc))}{heir}: {error}"
            ) from error
    return Matrix(channels, tuple(faults.values()))


def _without_faulty(
    path: Path, channel: str, text: ChannelText, faults: dict[str, str]
) -> ChannelText:
    """Leave out the packages whose recipe is gone or broken, so that the others can be built.

    `faults` gets a line for each. Where no package is left, nothing is left out: the channel is
    then refused with its fault.
    """
    packages = []
    for package in text.packages:
        name = text.recipe_of(package)
        try:
            recipe.recipe(name)
        except UsageError as error:
            fault = str(error)
            if name not in recipe.names():
                fault = f"{where(path, 'channels', channel, 'packages')}: no recipe for {package!r}"
            faults[package] = f"{package} is left out: {fault}"
        else:
            packages.append(package)
    if not packages:
        return text
    return text.model_copy(update={"packages": packages})


def _merged(
    path: Path, written: dict[str, ChannelText], name: str, heirs: tuple[str, ...] = ()
) -> ChannelText:
    """The channel with the keys of those that it extends. Raises UsageError: one does not exist, or
    extends itself.
    """
    text = written[name]
    chain = (*heirs, name)
    if text.extends is None:
        return text
    fault = None
    if text.extends in chain:
        fault = f"a cycle of inheritance: {' -> '.join((*chain, text.extends))}"
    elif text.extends not in written:
        near = nearest(text.extends, list(written))
        if near:
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"known: {', '.join(written)}"
        fault = f"unknown channel {text.extends!r}; {hint}"
    if fault:  # only now, since `where` reads the file again
        raise UsageError(
            f"{where(path, 'channels', name, 'extends')}: channels.{name}.extends: {fault}"
        )
    # What is written, not what differs from a default: a channel may set a key back to null.
    updates = {key: getattr(text, key) for key in text.model_fields_set}
    return _merged(path, written, text.extends, chain).model_copy(update=updates)


def _check_complete(text: ChannelText) -> None:
    for package in text.packages:
        if package not in recipe.names():
            near = recipe.near(package)
            if near:
                hint = f"did you mean {near[0]!r}?"
            else:
                hint = f"known: {', '.join(recipe.names())}"
            raise RuleError(f"no recipe for package {package!r}; {hint}", "packages")
    for index, rule in enumerate(text.include):
        if unknown := [package for package in rule.packages or () if package not in recipe.names()]:
            raise RuleError(f"no recipe for package {unknown[0]!r}", "include", index, "packages")
    for package, name in text.recipes.items():
        if name not in recipe.names():
            near = recipe.near(name) or list(recipe.names())
            raise RuleError(
                f"there is no recipe {name!r}; known: {', '.join(near)}", "recipes", package
            )
    for name in (text.recipe_of(package) for package in text.packages):
        built = recipe.recipe(name)
        if not recipe.is_replaced(name) and built.torch_release not in (
            None,
            torch := text.options["torch"],
        ):
            fault = f"{name} is built from sources of torch {built.torch_release}, not {torch}"
            raise RuleError(fault, "torch")
    # A channel of packages that do not need PyTorch pins no release of it.
    with_torch = [
        p for p in text.packages if OPTIONS["torch"].applies(recipe.recipe(text.recipe_of(p)))
    ]
    needed = [*REQUIRED, "torch"] if with_torch else REQUIRED
    if missing := [key for key in needed if not getattr(text, key)]:
        also = f", nor has {text.extends}" if text.extends else ""
        if "torch" in missing:
            advice = f'; {with_torch[0]} needs PyTorch: add `torch: "2.6.0"`, or another one'
        else:
            advice = ""
        raise RuleError(f"the channel has no {' and no '.join(missing)}{also}{advice}")
