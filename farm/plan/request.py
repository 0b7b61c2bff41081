"""What was asked for, resolved: the channel, the recipe and the choice of every option; and the
verdict on it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import NotBuildableError, UsageError
from farm.plan.channel import Channel, Pins
from farm.plan.compat.nearest import advise, apply_defaults, difference, solve
from farm.plan.compat.reason import Reason
from farm.plan.compat.rules import check
from farm.plan.compat.rules.features import feature_works
from farm.plan.compat.stack import Stack
from farm.plan.materials import commit_of, standalone_packages
from farm.plan.matrix import Matrix, load_matrix
from farm.plan.options import FILE, OPTIONS, Choice, Option, Value, option
from farm.plan.platforms.base import platform
from farm.plan.recipe import GitSource, Recipe, recipe
from farm.plan.variant import Variant
from farm.platforms.facts import DEFAULT


@dataclass(frozen=True)
class BuildRequest:
    """A request. `options` are explicit choices with their origins; the channel chooses the
    others.
    """

    variant: Variant
    package: str = "torch"
    platform: str = DEFAULT
    channel: str | None = None
    options: Mapping[str, Choice] = field(default_factory=dict)


def changed(request: BuildRequest, text: str) -> BuildRequest:
    """The request with other options, as a refusal names them: `--cuda 12.8 --no-ptx`.

    Raises:
        UsageError: The text names something that is no option of a plan.
    """
    variant = request.variant
    platform_name = request.platform
    channel = request.channel
    options = dict(request.options)
    words = iter(text.split())
    for flag in words:
        if flag in ("--ptx", "--no-ptx"):
            options["ptx"] = Choice(flag == "--ptx", flag)
        elif flag == "--variant":
            variant = Variant.parse(next(words))
        elif flag == "--platform":
            platform_name = next(words)
        elif flag == "--channel":
            channel = next(words)
        else:
            options[option(flag.removeprefix("--")).name] = Choice(next(words), flag)
    return BuildRequest(variant, request.package, platform_name, channel, options)


@dataclass(frozen=True)
class ResolvedRequest:
    """A build before it is judged: with a choice of every option, and the same as a `stack` for the
    rules.

    `package` is the name under which channels list it: a folder of recipes.
    """

    request: BuildRequest
    package: str
    channel: Channel
    channel_origin: str
    pins: Pins
    recipe: Recipe
    chosen: Mapping[str, Choice]
    stack: Stack

    def value(self, name: str) -> Value:
        """The value of the option `name`."""
        return self.chosen[name].value


def resolve_options(
    project: Path,
    request: BuildRequest,
    fields: Mapping[str, Any] | None = None,
    channel_name: str | None = None,
) -> ResolvedRequest:
    """The build that a request means; `fields` are further ones of the stack, such as a driver.

    The base image and the cuDNN that no one asked for give way where they alone stand against the
    build. `channel_name` is a channel to try in the place of the default one. Raises UsageError: a
    package, platform, channel, option or value is unknown, with the nearest; or an option of the
    command line means nothing to the build.
    """
    variant = request.variant
    options = {name: Choice(*explicit) for name, explicit in request.options.items()}
    for name, choice in options.items():
        option(name).check(choice)
        _completed(option(name), choice)  # also where it means nothing to this build
    matrix = load_matrix(project)
    package = _listed(matrix, request.package)
    system = platform(request.platform)
    if OPTIONS["torch"].applies(recipe(request.package)):
        torch_choice = options.get("torch")
    else:
        torch_choice = None
    # Before the channel is known, since it decides which one is the default.
    torch = catalog.find(catalog.torch_releases(), _text(torch_choice) or "")
    default = partial(
        matrix.default_channel,
        package,
        variant,
        request.platform,
        torch,
        _text(options.get("cuda")),
    )
    name = channel_name or request.channel or default()
    channel = matrix.channel(name)
    pins = channel.pins(package, variant, request.platform, _text(options.get("cuda")))
    recipe_ = recipe(pins.recipe)
    choices = {
        entry.name: _choose(entry, recipe_, variant, options, pins, channel.name)
        for entry in OPTIONS.values()
    }
    stack = Stack(
        package=recipe_.package,
        variant=variant,
        platform=request.platform,
        base=pins.base,
        toolkit=_text(choices["toolkit"]),
        cuda=_text(choices["cuda"]),
        torch=_text(choices["torch"]),
        cudnn=_text(choices["cudnn"]),
        ptx=bool(choices["ptx"].value),
        words=tuple((name, word) for name in catalog.words() if (word := _text(choices[name]))),
        components=tuple(recipe_.components),
        features=tuple(recipe_.features),
        **(fields or {}),
    )
    stack = system.with_platform(stack)
    # What someone asked for never gives way.
    free = {"base", "cudnn"} - set(options)
    # First what a default can mend, then whether a standalone Python would mend more.
    adjusted = apply_defaults(stack, free)
    adjusted = _use_standalone_python(
        stack, adjusted, recipe_, free, pinned=channel.text.base is not None
    )
    if adjusted.cudnn != stack.cudnn:
        why = f"the other choices: {stack.cudnn} of channel {channel.name} does not go with them"
        choices["cudnn"] = Choice(adjusted.cudnn, why)
    return ResolvedRequest(
        request=request,
        package=package,
        channel=channel,
        channel_origin="--channel"
        if request.channel
        else "default"
        if channel_name is None
        else "it fits",
        pins=replace(pins, base=adjusted.base),
        recipe=recipe_,
        chosen=choices,
        stack=adjusted,
    )


def _use_standalone_python(
    stack: Stack, settled: Stack, recipe_: Recipe, free: Collection[str], *, pinned: bool
) -> Stack:
    """The settled stack, or one with a standalone Python where less stands against that.

    The base image that a channel pins is the oldest glibc that its wheels need: a standalone Python
    keeps it.
    """
    releases = catalog.debian_releases()
    python = stack.variant.python
    against = {reason.rule for reason in check(settled) if reason.blocks}
    moved = pinned and settled.base != stack.base
    outdated = settled.base in releases and releases[settled.base].outdated
    if stack.base is None or not recipe_.wheels or not (against or moved or outdated):
        return settled
    another = next(name for name in (stack.base, *releases) if releases[name].python != python)
    for base in (stack.base, another) if outdated else (another,):
        packages = standalone_packages(recipe_, python, base)
        with_standalone = replace(stack, base=base, standalone=packages)
        # Its base stays: keeping that is what the standalone Python is for.
        with_standalone = apply_defaults(with_standalone, set(free) - {"base"})
        objections = {reason.rule for reason in check(with_standalone) if reason.blocks}
        # A standalone Python is only taken where it helps: it needs a wheel of everything that the
        # build imports.
        fewer = len(objections) < len(against) or (
            "base-python" in against and len(objections) == len(against)
        )
        if fewer or ((moved or outdated) and not objections):
            return with_standalone
    return settled


def _listed(matrix: Matrix, name: str) -> str:
    """The name under which channels list the recipe `name`: its folder's, else its package's."""
    package = recipe(name).package
    if any(name in channel.packages for channel in matrix.channels.values()):
        return name
    return package


def _choose(
    one: Option,
    recipe_: Recipe,
    variant: Variant,
    given: Mapping[str, Choice],
    pins: Pins,
    channel: str,
) -> Choice:
    """The explicit choice, else the channel's, else the default, also for an option that does not
    apply.
    """
    if one.needs_gpu and not variant.sms:
        nothing = f"variant {variant}"
    else:
        nothing = None
    nothing = nothing or (None if one.applies(recipe_) else f"recipe {recipe_.package}")
    if nothing:
        # Options of ci/farm.yaml hold for all builds that know them, those of a command for the one
        # that it is about.
        if (
            one.name in given
            and not given[one.name].origin.startswith(FILE)
            and given[one.name].value != one.default
        ):
            raise UsageError(
                f"{given[one.name].origin} means nothing to {nothing}", hint="leave it out"
            )
        return Choice(one.default, nothing)
    if one.name in given:
        return _completed(one, given[one.name])
    if one.name in pins.options:
        return _completed(one, Choice(pins.options[one.name], f"channel {channel}"))
    return Choice(one.default, "default")


def _completed(one: Option, choice: Choice) -> Choice:
    """`--torch 2.7` means the newest 2.7. Raises UsageError: the catalogue has none, which forbids
    nothing.
    """
    if one.catalogue is None or not isinstance(choice.value, str):
        return choice
    versions = getattr(catalog, one.catalogue)()
    version = catalog.find(versions, choice.value)
    if version is None:
        names = {"cuda": "CUDA", "cudnn": "cuDNN"}
        raise UsageError(
            f"{names.get(one.name, one.name)} {choice.value} (from {choice.origin}) is not in the "
            "catalogue",
            hint=catalog.known(versions, choice.value),
        )
    return choice._replace(value=version)


def _text(choice: Choice | None) -> str | None:
    return choice.value if choice and isinstance(choice.value, str) else None


@dataclass(frozen=True)
class Verdict:
    """The reasons against a build: of its channel (`offer`), of the rules; `options`: what was
    asked for.

    `instead`: where the channel lacks something, what can be planned instead, each as it is typed.
    `can_be_planned`: whether some channel takes options that the rules find.
    """

    what: str
    channel: str
    stack: Stack
    offer: list[Reason]
    rules: list[Reason]
    options: tuple[str, ...]
    instead: tuple[str, ...] = ()
    can_be_planned: Callable[[str], bool] = field(default=bool, compare=False)

    @property
    def buildable(self) -> bool:
        """Nothing forbids it; a file that it needs may still have to be pinned."""
        return not any(reason.severity == "error" for reason in (*self.offer, *self.rules))

    @property
    def complete(self) -> bool:
        """It can be built, and every file that it needs is pinned: a plan can be made."""
        return not any(reason.blocks for reason in (*self.offer, *self.rules))

    @property
    def obstacles(self) -> tuple[int, int]:
        """How much stands against it: first what its channel lacks, then what the rules refuse."""
        return len(self.offer), sum(reason.blocks for reason in self.rules)

    def reasons_with_nearest(self) -> list[Reason]:
        """Every reason, those of the rules with the nearest that would do away with each."""
        reasons = [*self.offer, *advise(self.stack, self.rules, self.options)]
        # Where one error stays whatever is changed, doing away with another is of no use.
        hopeless = any(reason.severity == "error" and not reason.nearest for reason in reasons)
        if hopeless:
            return [replace(reason, nearest=None) for reason in reasons]
        return reasons

    def alternatives(self) -> list[str]:
        """The nearest builds that can be planned, each as it is typed; the best first."""
        if self.offer:
            return list(self.instead)
        solved = solve(self.stack, self.options)
        text = difference(self.stack, solved) if solved else ""
        return [text] if text and self.can_be_planned(text) else []

    def nearest(self) -> str | None:
        """The first of the alternatives; None: nothing is against the build, or nothing was
        found.
        """
        return next(iter(self.alternatives()), None)

    def require_buildable(self) -> None:
        """Raise a NotBuildableError with every reason and the nearest that can be built, where it
        cannot be built.
        """
        if self.complete:
            return
        reasons = [reason for reason in self.reasons_with_nearest() if reason.blocks]
        lines = [f"{self.what} cannot be built:", *(f"  - {reason.text}" for reason in reasons)]
        # One change that does away with everything is worth more than one for each reason.
        single = dict.fromkeys(reason.nearest for reason in reasons if reason.nearest)
        if alternatives := self.alternatives():
            hint = f"nearest that can: {', or '.join(alternatives)}"
        else:
            hint = "; ".join(single)
        hint = (
            hint or f"`farm matrix --platform {self.stack.platform}` lists what can be built for it"
        )
        raise NotBuildableError("\n".join(lines), hint=hint)


def verdict_on(resolved: ResolvedRequest) -> Verdict:
    """Every reason against a resolved request."""
    request = resolved.request
    stack = resolved.stack
    offer = [
        *_not_offered(resolved),
        *_no_source(resolved.recipe, stack.torch),
        *_turned_off(resolved),
    ]
    # What the command line says stands there; of what comes from elsewhere a message names the
    # place.
    elsewhere = [
        f"{name} {resolved.value(name)} (from {resolved.chosen[name].origin})"
        for name, explicit in request.options.items()
        if not explicit[1].startswith("--") and resolved.chosen[name].origin == explicit[1]
    ]
    title = (
        f"{request.package} for "
        f"{request.variant}{' with ' if elsewhere else ''}{', '.join(elsewhere)}"
    )
    return Verdict(title, resolved.channel.name, stack, offer, check(stack), tuple(request.options))


def _not_offered(resolved: ResolvedRequest) -> Iterator[Reason]:
    """Parts that the channel does not offer, apart from those that the rules explain better."""
    channel = resolved.channel
    recipe = resolved.recipe
    variant = resolved.request.variant
    name = channel.name
    package = resolved.package
    platform = resolved.request.platform
    source = "ci/matrix.yaml"
    if package not in channel.packages:
        fact = f"packages of {name}: {', '.join(channel.packages)}"
        yield Reason("channel", f"channel {name} does not build {package}", fact, source)
    if platform not in channel.platforms or platform not in recipe.platforms:
        both = [p for p in channel.platforms if p in recipe.platforms]
        fact = f"platforms of {package} in {name}: {', '.join(both) or 'none'}"
        nearest = f"--platform {both[0]}" if both else None
        yield Reason(
            "channel", f"{package} in {name} is not built for {platform}", fact, source, nearest
        )
    # GPUs with an SM are the rules' matter: they say which CUDA would do, this could only say no.
    if variant.gpu not in channel.gpus and not variant.sms:
        fact = f"GPUs of {name}: {', '.join(channel.gpus)}"
        yield Reason("channel", f"channel {name} does not offer {variant.gpu}", fact, source)


def _turned_off(resolved: ResolvedRequest) -> Iterator[Reason]:
    """Switches of PyTorch that were asked for and that the recipe has off, or where the rules only
    doubt.
    """
    recipe = resolved.recipe
    platform = resolved.request.platform
    variables = (
        recipe.env
        | recipe.env_platform.get(platform, {})
        | (recipe.env_cuda if resolved.stack.cuda else {})
    )
    variables |= {str(catalog.features()[name].switch): "0" for name in recipe.without}
    for name in sorted(resolved.stack.switches):
        against = list(feature_works(resolved.stack, feature := catalog.switches()[name]))
        doubt = any(reason.severity == "warning" for reason in against)
        if not resolved.pins.switches.get(name, variables.get(name) != "0" and not doubt):
            why = recipe.without.get(feature) or next((reason.text for reason in against), None)
            text = f"{name} is off where channel {resolved.channel.name} builds {recipe.package}"
            text += f": {why}" if why else ""
            yield Reason(
                "switch-recipe",
                text,
                f"{name}: 0",
                f"farm/recipes/{resolved.pins.recipe}/recipe.yaml",
            )


def _no_source(recipe: Recipe, torch: str | None) -> list[Reason]:
    """A companion of a torch release whose commit is not known cannot be built, nor another release
    of a tarball.
    """
    if recipe.torch_release not in (None, torch):
        text = (
            f"this channel builds {recipe.package} {recipe.version}, which belongs to torch "
            f"{recipe.torch_release}"
        )
        nearest = f"--torch {recipe.torch_release}"
        return [
            Reason(
                "source",
                f"{text}, not {torch}",
                f"source: {recipe.source.kind}",
                "farm/recipes",
                nearest,
            )
        ]
    release = catalog.torch_releases().get(torch or "")
    if (
        not isinstance(recipe.source, GitSource)
        or release is None
        or commit_of(recipe.source, release)
    ):
        return []
    releases = [
        name
        for name, other_release in catalog.torch_releases().items()
        if commit_of(recipe.source, other_release)
    ]
    text = f"the commit of {recipe.package} for torch {torch} is not in the catalogue"
    return [
        Reason("source", text, f"known for torch {', '.join(releases)}", "farm/catalog/torch.yaml")
    ]
