"""The matrix: the channels of `ci/matrix.yaml` with what they inherit, and all of their builds."""

from collections.abc import Iterable, Iterator
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
            hint = f"channels: {', '.join(self.channels)}"
            if near:
                hint = f"nearest: {', '.join(near)}"
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
        fitting = []
        for channel in self.channels.values():
            if package in channel.packages and platform in channel.platforms:
                fitting.append(channel)
        if not fitting:
            raise UsageError(f"no channel of ci/matrix.yaml builds {package!r} for {platform}")

        def distance(channel: Channel) -> tuple[int, bool, bool]:
            offers = channel.cudas(package, variant, platform)
            if not offers:
                return _distance_of_hardware(channel, variant, platform), False, False
            other_torch = torch not in (None, channel.text.options.get("torch"))
            return 0, other_torch, cuda is not None and cuda not in offers

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
        channel_name = channel
        if slash:
            channel_name = self.channel(head).name
        builds: dict[str, Build] = {}
        for build in self.builds(channel_name):
            builds.setdefault(build.alias, build)  # of equal aliases the first channel's
        if alias in builds:
            return builds[alias]
        near = nearest(alias, list(reversed(builds)))
        hint = "farm matrix --format names lists them"
        if near:
            hint = f"nearest: {', '.join(near)}"
        fault = f"unknown build {name!r}"
        if channel_name:
            fault += f" in {channel_name}"
        raise UsageError(fault, hint=hint)

    def builds(self, channel: str | None = None) -> Iterator[Build]:
        """The builds of one channel or of all, in the order of the file. Raises UsageError: there
        is none.
        """
        if channel is not None:
            yield from self.channel(channel).builds
            return
        for source in self.channels.values():
            yield from source.builds


def load_matrix(project: Path) -> Matrix:
    """Read `ci/matrix.yaml`, again if it changed. Raises UsageError: it is wrong; file and line are
    given.
    """
    recipe.use_project(project)
    path = resources.path(project, "ci/matrix.yaml")
    return _load(path, read_bounded(path), recipe.names())


# The cache goes by the content and by the packages that have a recipe.
@lru_cache(maxsize=4)
def _load(path: Path, content: bytes, packages: tuple[str, ...]) -> Matrix:  # noqa: ARG001
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
            owner = _owner(written, name, error)
            loc = ("channels", owner, *error.loc)
            place = ".".join(map(str, loc))
            if owner != name:
                place += f", inherited by {name}"
            raise UsageError(f"{where(path, *loc)}: {place}: {error}") from error
    return Matrix(channels, tuple(faults.values()))


def _owner(written: dict[str, ChannelText], name: str, error: RuleError) -> str:
    """The channel that the key at fault is written in: the nearest of the chain that has it."""
    owner = name
    while error.loc and error.loc[0] not in written[owner].model_fields_set:
        heir_of = written[owner].extends
        if not heir_of:
            break
        owner = heir_of
    return owner


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
        hint = _did_you_mean(nearest(text.extends, list(written)), written)
        fault = f"unknown channel {text.extends!r}; {hint}"
    if fault:  # only now, since `where` reads the file again
        raise UsageError(
            f"{where(path, 'channels', name, 'extends')}: channels.{name}.extends: {fault}"
        )
    # What is written, not what differs from a default: a channel may set a key back to null.
    updates = {key: getattr(text, key) for key in text.model_fields_set}
    return _merged(path, written, text.extends, chain).model_copy(update=updates)


def _did_you_mean(near: list[str], names: Iterable[str]) -> str:
    """The name that may be meant, else all that there are."""
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(names)}"


def _check_complete(text: ChannelText) -> None:
    """Raise a RuleError where a channel names a recipe that there is not, or lacks a key."""
    names = recipe.names()
    for package in text.packages:
        if package not in names:
            hint = _did_you_mean(recipe.near(package), names)
            raise RuleError(f"no recipe for package {package!r}; {hint}", "packages")
    for index, rule in enumerate(text.include):
        for package in rule.packages:
            if package not in names:
                fault = f"no recipe for package {package!r}"
                raise RuleError(fault, "include", index, "packages")
    for package, name in text.recipes.items():
        if name not in names:
            near = recipe.near(name) or list(names)
            fault = f"there is no recipe {name!r}; known: {', '.join(near)}"
            raise RuleError(fault, "recipes", package)
    _check_releases(text)
    _check_keys(text)


def _check_releases(text: ChannelText) -> None:
    """Raise a RuleError where a recipe's source belongs to another PyTorch than the channel's."""
    torch = text.options["torch"]
    for package in text.packages:
        name = text.recipe_of(package)
        release = recipe.recipe(name).torch_release
        if release not in (None, torch) and not recipe.is_replaced(name):
            raise RuleError(
                f"{name} is built from sources of torch {release}, not {torch}", "torch"
            )


def _check_keys(text: ChannelText) -> None:
    """Raise a RuleError where a channel lacks a key that its packages need."""
    missing = [key for key in REQUIRED if not getattr(text, key)]
    advice = ""
    # A channel of packages that do not need PyTorch pins no release of it.
    user = _user_of_torch(text)
    if user and not text.options["torch"]:
        missing.append("torch")
        advice = f'; {user} needs PyTorch: add `torch: "2.6.0"`, or another one'
    if missing:
        also = ""
        if text.extends:
            also = f", nor has {text.extends}"
        raise RuleError(f"the channel has no {' and no '.join(missing)}{also}{advice}")


def _user_of_torch(text: ChannelText) -> str | None:
    """The first package of a channel that needs PyTorch."""
    for package in text.packages:
        if OPTIONS["torch"].applies(recipe.recipe(text.recipe_of(package))):
            return package
    return None


def _distance_of_hardware(channel: Channel, variant: Variant, platform: str) -> int:
    """How far a channel that does not offer a variant is from it: the same GPU and CPU, the GPU,
    neither.
    """
    for build in channel.builds:
        if build.platform == platform and build.variant.group == variant.group:
            return 1
    if variant.gpu in channel.gpus:
        return 2
    return 3
