"""What was asked for, resolved: the channel, the recipe and the choice of every option; and the
verdict on it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    switches = {}
    for entry in OPTIONS.values():
        if entry.kind is bool:
            switches[entry.flag] = (entry.name, True)
            switches[entry.off_flag] = (entry.name, False)
    words = iter(text.split())
    for flag in words:
        if flag in switches:
            name, value = switches[flag]
            options[name] = Choice(value, flag)
        elif flag == "--variant":
            variant = Variant.parse(next(words))
        elif flag == "--platform":
            platform_name = next(words)
        elif flag == "--channel":
            channel = next(words)
        else:
            name = option(flag.removeprefix("--").replace("-", "_")).name
            options[name] = Choice(next(words), flag)
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
    options = {name: Choice(*explicit) for name, explicit in request.options.items()}
    for name, choice in options.items():
        option(name).check(choice)
        _completed(option(name), choice)  # also where it means nothing to this build
    matrix = load_matrix(project)
    package = _listed(matrix, request.package)
    system = platform(request.platform)
    channel = _channel(matrix, request, package, options, channel_name)
    cuda = _text(options.get("cuda"))
    pins = channel.pins(package, request.variant, request.platform, cuda)
    recipe_ = recipe(pins.recipe)
    choices = {}
    for name, entry in OPTIONS.items():
        choices[name] = _choose(entry, recipe_, request.variant, options, pins, channel.name)
    stack = system.with_platform(_stack(request, pins, recipe_, choices, fields or {}))
    # What someone asked for never gives way.
    free = {"base", "cudnn"} - set(options)
    # First what a default can mend, then whether a standalone Python would mend more.
    adjusted = apply_defaults(stack, free)
    is_pinned = channel.text.base is not None
    adjusted = _use_standalone_python(stack, adjusted, recipe_, free, pinned=is_pinned)
    if adjusted.cudnn != stack.cudnn:
        why = f"the other choices: {stack.cudnn} of channel {channel.name} does not go with them"
        choices["cudnn"] = Choice(adjusted.cudnn, why)
    return ResolvedRequest(
        request=request,
        package=package,
        channel=channel,
        channel_origin=_channel_origin(request, channel_name),
        pins=replace(pins, base=adjusted.base),
        recipe=recipe_,
        chosen=choices,
        stack=adjusted,
    )


def _channel(
    matrix: Matrix,
    request: BuildRequest,
    package: str,
    options: Mapping[str, Choice],
    channel_name: str | None,
) -> Channel:
    """The channel to try, else the one that was asked for, else the default one of a build."""
    name = channel_name or request.channel
    if name is None:
        # Before the channel is known, since it decides which one is the default.
        torch = None
        if OPTIONS["torch"].applies(recipe(request.package)):
            torch = catalog.find(catalog.torch_releases(), _text(options.get("torch")) or "")
        cuda = _text(options.get("cuda"))
        name = matrix.default_channel(package, request.variant, request.platform, torch, cuda)
    return matrix.channel(name)


def _channel_origin(request: BuildRequest, channel_name: str | None) -> str:
    if request.channel:
        return "--channel"
    if channel_name is None:
        return "default"
    return "it fits"


def _stack(
    request: BuildRequest,
    pins: Pins,
    recipe_: Recipe,
    choices: Mapping[str, Choice],
    fields: Mapping[str, Any],
) -> Stack:
    words = []
    for name in catalog.words():
        word = _text(choices[name])
        if word:
            words.append((name, word))
    return Stack(
        package=recipe_.package,
        variant=request.variant,
        platform=request.platform,
        base=pins.base,
        toolkit=_text(choices["toolkit"]),
        cuda=_text(choices["cuda"]),
        torch=_text(choices["torch"]),
        cudnn=_text(choices["cudnn"]),
        ptx=bool(choices["ptx"].value),
        words=tuple(words),
        components=tuple(recipe_.components),
        features=tuple(recipe_.features),
        **fields,
    )


def _use_standalone_python(
    stack: Stack, adjusted: Stack, recipe_: Recipe, free: Collection[str], *, pinned: bool
) -> Stack:
    """The adjusted stack, or one with a standalone Python where less stands against that.

    The base image that a channel pins is the oldest glibc that its wheels need: a standalone Python
    keeps it.
    """
    if stack.base is None or not recipe_.wheels:
        return adjusted
    against = _rules_against(adjusted)
    moved = pinned and adjusted.base != stack.base
    outdated = _is_outdated(adjusted.base)
    if not (against or moved or outdated):
        return adjusted
    python = stack.variant.python
    bases = [_base_with_another_python(stack.base, python)]
    if outdated:
        bases.insert(0, stack.base)
    for base in bases:
        packages = standalone_packages(recipe_, python, base)
        with_standalone = replace(stack, base=base, standalone=packages)
        # Its base stays: keeping that is what the standalone Python is for.
        with_standalone = apply_defaults(with_standalone, set(free) - {"base"})
        objections = _rules_against(with_standalone)
        # A standalone Python is only taken where it helps: it needs a wheel of everything that the
        # build imports.
        if len(objections) < len(against):
            return with_standalone
        if "base-python" in against and len(objections) == len(against):
            return with_standalone
        if (moved or outdated) and not objections:
            return with_standalone
    return adjusted


def _rules_against(stack: Stack) -> set[str]:
    """The rules by which a stack cannot be built."""
    return {reason.rule for reason in check(stack) if reason.blocks}


def _is_outdated(base: str | None) -> bool:
    """True if a base image's Python is no longer maintained."""
    release = catalog.debian_releases().get(base or "")
    return release is not None and release.outdated


def _base_with_another_python(base: str, python: str) -> str:
    """The base image, else the first of the catalogue, whose own Python is another one."""
    releases = catalog.debian_releases()
    return next(name for name in (base, *releases) if releases[name].python != python)


def _listed(matrix: Matrix, name: str) -> str:
    """The name under which channels list the recipe `name`: its folder's, else its package's."""
    package = recipe(name).package
    for channel in matrix.channels.values():
        if name in channel.packages:
            return name
    return package


def _choose(
    entry: Option,
    recipe_: Recipe,
    variant: Variant,
    explicit: Mapping[str, Choice],
    pins: Pins,
    channel: str,
) -> Choice:
    """The explicit choice, else the channel's, else the default, also for an option that does not
    apply.
    """
    choice = explicit.get(entry.name)
    subject = _without_meaning(entry, recipe_, variant)
    if subject:
        # Options of ci/farm.yaml hold for all builds that know them, those of a command for the one
        # that it is about.
        if choice and not choice.origin.startswith(FILE) and choice.value != entry.default:
            raise UsageError(f"{choice.origin} does not apply to {subject}", hint="leave it out")
        return Choice(entry.default, subject)
    if choice:
        return _completed(entry, choice)
    if entry.name in pins.options:
        return _completed(entry, Choice(pins.options[entry.name], f"channel {channel}"))
    return Choice(entry.default, "default")


def _without_meaning(entry: Option, recipe_: Recipe, variant: Variant) -> str | None:
    """The variant or recipe that an option means nothing to."""
    if entry.needs_gpu and not variant.sms:
        return f"variant {variant}"
    if not entry.applies(recipe_):
        return f"recipe {recipe_.package}"
    return None


def _completed(entry: Option, choice: Choice) -> Choice:
    """`--torch 2.7` means the newest 2.7. Raises UsageError: the catalogue has none, which forbids
    nothing.
    """
    if entry.catalogue is None or not isinstance(choice.value, str):
        return choice
    versions = getattr(catalog, entry.catalogue)()
    version = catalog.find(versions, choice.value)
    if version is None:
        title = {"cuda": "CUDA", "cudnn": "cuDNN"}.get(entry.name, entry.name)
        raise UsageError(
            f"{title} {choice.value} (from {choice.origin}) is not in the catalogue",
            hint=catalog.known(versions, choice.value),
        )
    return choice._replace(value=version)


def _text(choice: Choice | None) -> str | None:
    """The value of a choice that is text."""
    if choice is not None and isinstance(choice.value, str):
        return choice.value
    return None


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
        return not any(reason.severity == "error" for reason in self.reasons)

    @property
    def complete(self) -> bool:
        """It can be built, and every file that it needs is pinned: a plan can be made."""
        return not any(reason.blocks for reason in self.reasons)

    @property
    def obstacles(self) -> tuple[int, int]:
        """How much stands against it: first what its channel lacks, then what the rules refuse."""
        return len(self.offer), sum(reason.blocks for reason in self.rules)

    def reasons_with_nearest(self) -> list[Reason]:
        """Every reason, those of the rules with the nearest that would do away with each."""
        reasons = [*self.offer, *advise(self.stack, self.rules, self.options)]
        for reason in reasons:
            # Where one error stays whatever is changed, doing away with another is of no use.
            if reason.severity == "error" and not reason.nearest:
                return [replace(other_reason, nearest=None) for other_reason in reasons]
        return reasons

    def alternatives(self) -> list[str]:
        """The nearest builds that can be planned, each as it is typed; the best first."""
        if self.offer:
            return list(self.instead)
        solved = solve(self.stack, self.options)
        if solved is None:
            return []
        text = difference(self.stack, solved)
        if not text or not self.can_be_planned(text):
            return []
        return [text]

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
        lines = [f"{self.what} cannot be built:"]
        singles = []
        for reason in self.reasons_with_nearest():
            if reason.blocks:
                lines.append(f"  - {reason.text}")
                if reason.nearest:
                    singles.append(reason.nearest)
        # One change that does away with everything is worth more than one for each reason.
        alternatives = self.alternatives()
        if alternatives:
            hint = f"nearest that can: {', or '.join(alternatives)}"
        elif singles:
            hint = "; ".join(dict.fromkeys(singles))
        else:
            hint = f"`farm matrix --platform {self.stack.platform}` lists what can be built for it"
        raise NotBuildableError("\n".join(lines), hint=hint)

    @property
    def reasons(self) -> list[Reason]:
        """Every reason, those of the channel first."""
        return [*self.offer, *self.rules]


def verdict_on(resolved: ResolvedRequest) -> Verdict:
    """Every reason against a resolved request."""
    request = resolved.request
    stack = resolved.stack
    offer = [
        *_not_offered(resolved),
        *_no_source(resolved.recipe, stack.torch),
        *_turned_off(resolved),
    ]
    title = f"{request.package} for {request.variant}"
    # What the command line says stands there; of what comes from elsewhere a message names the
    # place.
    elsewhere = []
    for name, explicit in request.options.items():
        choice = resolved.chosen[name]
        if choice.origin == explicit[1] and not choice.origin.startswith("--"):
            elsewhere.append(f"{name} {choice.value} (from {choice.origin})")
    if elsewhere:
        title += f" with {', '.join(elsewhere)}"
    return Verdict(title, resolved.channel.name, stack, offer, check(stack), tuple(request.options))


def _not_offered(resolved: ResolvedRequest) -> Iterator[Reason]:
    """Parts that the channel does not offer, apart from those that the rules explain better."""
    channel = resolved.channel
    variant = resolved.request.variant
    name = channel.name
    package = resolved.package
    platform = resolved.request.platform
    source = "ci/matrix.yaml"
    if package not in channel.packages:
        fact = f"packages of {name}: {', '.join(channel.packages)}"
        yield Reason("channel", f"channel {name} does not build {package}", fact, source)
    both = [word for word in channel.platforms if word in resolved.recipe.platforms]
    if platform not in both:
        text = f"{package} in {name} is not built for {platform}"
        fact = f"platforms of {package} in {name}: {', '.join(both) or 'none'}"
        nearest = None
        if both:
            nearest = f"--platform {both[0]}"
        yield Reason("channel", text, fact, source, nearest)
    # GPUs with an SM are the rules' matter: they say which CUDA would do, this could only say no.
    if variant.gpu not in channel.gpus and not variant.sms:
        fact = f"GPUs of {name}: {', '.join(channel.gpus)}"
        yield Reason("channel", f"channel {name} does not offer {variant.gpu}", fact, source)


def _turned_off(resolved: ResolvedRequest) -> Iterator[Reason]:
    """Switches of PyTorch that were asked for and that the recipe has off, or where the rules only
    doubt.
    """
    recipe = resolved.recipe
    variables = _variables_of_recipe(resolved)
    for name in sorted(resolved.stack.switches):
        feature = catalog.switches()[name]
        against = list(feature_works(resolved.stack, feature))
        doubt = any(reason.severity == "warning" for reason in against)
        on_by_default = variables.get(name) != "0" and not doubt
        if resolved.pins.switches.get(name, on_by_default):
            continue
        text = f"{name} is off where channel {resolved.channel.name} builds {recipe.package}"
        if feature in recipe.without:
            text += f": {recipe.without[feature]}"
        elif against:
            text += f": {against[0].text}"
        source = f"farm/recipes/{resolved.pins.recipe}/recipe.yaml"
        yield Reason("switch-recipe", text, f"{name}: 0", source)


def _variables_of_recipe(resolved: ResolvedRequest) -> dict[str, str]:
    """The variables that a recipe sets on the platform of a build, switches that it has off among
    them.
    """
    recipe = resolved.recipe
    variables = recipe.env | recipe.env_platform.get(resolved.request.platform, {})
    if resolved.stack.cuda:
        variables |= recipe.env_cuda
    for name in recipe.without:
        variables[str(catalog.features()[name].switch)] = "0"
    return variables


def _no_source(recipe: Recipe, torch: str | None) -> Iterator[Reason]:
    """A companion of a torch release whose commit is not known cannot be built, nor another release
    of a tarball.
    """
    source = recipe.source
    if recipe.torch_release not in (None, torch):
        yield Reason(
            "source",
            f"this channel builds {recipe.package} {recipe.version}, which belongs to torch "
            f"{recipe.torch_release}, not {torch}",
            f"source: {source.kind}",
            "farm/recipes",
            f"--torch {recipe.torch_release}",
        )
        return
    releases = catalog.torch_releases()
    if not isinstance(source, GitSource) or torch not in releases:
        return
    with_commit = [name for name, release in releases.items() if commit_of(source, release)]
    if torch not in with_commit:
        yield Reason(
            "source",
            f"the commit of {recipe.package} for torch {torch} is not in the catalogue",
            f"known for torch {', '.join(with_commit)}",
            "farm/catalog/torch.yaml",
        )
