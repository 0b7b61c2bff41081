"""Reasons against a candidate: its channel does not offer it, or the rules object to its stack."""

from collections.abc import Iterator
from dataclasses import dataclass

from farm import catalog
from farm.base.errors import NotBuildableError
from farm.plan.compat import Reason, Stack, advise, check, difference, solve
from farm.plan.inputs import commit_of
from farm.plan.recipe import GitSource, Recipe
from farm.plan.selectors import Candidate


@dataclass(frozen=True)
class Judgement:
    """The reasons against a build: `offer` are the channel's, `rules` those of the rules.

    `options` are the fields of the stack that someone asked for, in that order.
    """

    what: str
    stack: Stack
    offer: list[Reason]
    rules: list[Reason]
    options: tuple[str, ...] = ()

    @property
    def buildable(self) -> bool:
        """Nothing forbids it; a file that it needs may still have to be pinned."""
        return not any(reason.severity == "error" for reason in (*self.offer, *self.rules))

    @property
    def complete(self) -> bool:
        """It can be built, and every file that it needs is pinned: a plan can be made."""
        return all(reason.severity == "warning" for reason in (*self.offer, *self.rules))

    @property
    def obstacles(self) -> tuple[int, int]:
        """How much stands against it: first what its channel lacks, then what the rules refuse."""
        return len(self.offer), sum(reason.severity != "warning" for reason in self.rules)

    def advised(self) -> list[Reason]:
        """Every reason, those of the rules with the nearest that would do away with each."""
        return [*self.offer, *advise(self.stack, self.rules, self.options)]

    def nearest(self) -> str | None:
        """The options that would do away with all errors of the rules; None: they have none, or nothing was found."""
        found = solve(self.stack, self.options)
        return difference(self.stack, found) or None if found else None

    def require_buildable(self) -> None:
        """Refuse what cannot be built.

        Raises:
            NotBuildableError: Every reason is in the message, the nearest that can be built in the hint.
        """
        if self.complete:
            return
        reasons = [reason for reason in self.advised() if reason.severity != "warning"]
        lines = [f"{self.what} cannot be built:", *(f"  - {reason.text}" for reason in reasons)]
        # What the rules propose is for the platform that was asked for.
        if elsewhere := [r.nearest for r in self.offer if r.nearest and r.nearest.startswith("--platform ")]:
            raise NotBuildableError("\n".join(lines), hint=f"{elsewhere[0]}, or another channel")
        # One change that does away with everything is worth more than one for each reason.
        nearest, single = self.nearest(), [reason.nearest for reason in reasons if reason.nearest]
        raise NotBuildableError(
            "\n".join(lines), hint=f"nearest that can: {nearest}" if nearest else "; ".join(single) or None
        )


def judgement(candidate: Candidate) -> Judgement:
    """Every reason against the candidate."""
    selectors = candidate.selectors
    return Judgement(
        what=f"{selectors.package} for {selectors.variant}",
        stack=candidate.stack,
        offer=[
            *_not_offered(candidate),
            *_no_source(candidate.recipe, candidate.stack.torch),
            *_turned_off(candidate),
        ],
        rules=check(candidate.stack),
        options=tuple(candidate.selectors.options),
    )


def _not_offered(candidate: Candidate) -> list[Reason]:
    """Parts that the channel does not offer, apart from those that the rules explain better."""
    channel, recipe, variant = candidate.channel, candidate.recipe, candidate.selectors.variant
    name, package, platform = channel.name, candidate.package, candidate.selectors.platform
    source, found = "ci/matrix.yaml", []
    if package not in channel.packages:
        fact = f"packages of {name}: {', '.join(channel.packages)}"
        found.append(Reason("channel", f"channel {name} does not build {package}", fact, source))
    if platform not in channel.platforms or platform not in recipe.platforms:
        both = [p for p in channel.platforms if p in recipe.platforms]
        fact = f"platforms of {package} in {name}: {', '.join(both) or 'none'}"
        nearest = f"--platform {both[0]}" if both else None
        found.append(Reason("channel", f"{package} in {name} is not built for {platform}", fact, source, nearest))
    # GPUs with an SM are the rules' matter: they say which CUDA would do, this could only say no.
    if variant.gpu not in channel.gpus and not variant.sms:
        fact = f"GPUs of {name}: {', '.join(channel.gpus)}"
        found.append(Reason("channel", f"channel {name} does not offer {variant.gpu}", fact, source))
    return found


def _turned_off(candidate: Candidate) -> Iterator[Reason]:
    """Switches of PyTorch that were asked for and that the recipe has off, whatever the rules say."""
    recipe, platform = candidate.recipe, candidate.selectors.platform
    own = recipe.env | recipe.env_platform.get(platform, {}) | (recipe.env_cuda if candidate.stack.cuda else {})
    own |= {str(catalog.features()[name].switch): "0" for name in recipe.without}
    own |= {name: str(int(on)) for name, on in candidate.pins.switches.items()}
    for name in sorted(candidate.stack.switches):
        if own.get(name) == "0":
            text = f"{name} is off in the recipe of {recipe.package} in channel {candidate.channel.name}"
            yield Reason("switch-recipe", text, f"{name}: 0", f"farm/recipes/{candidate.pins.recipe}/recipe.yaml")


def _no_source(recipe: Recipe, torch: str | None) -> list[Reason]:
    """A companion of a torch release whose commit is not known cannot be built, nor another release of a tarball."""
    if recipe.torch_release not in (None, torch):
        text = f"this channel builds {recipe.package} {recipe.version}, which belongs to torch {recipe.torch_release}"
        nearest = f"--torch {recipe.torch_release}"
        return [Reason("source", f"{text}, not {torch}", f"source: {recipe.source.kind}", "farm/recipes", nearest)]
    release = catalog.torch_releases().get(torch or "")
    if not isinstance(recipe.source, GitSource) or release is None or commit_of(recipe.source, release):
        return []
    known = [name for name, other in catalog.torch_releases().items() if commit_of(recipe.source, other)]
    text = f"the commit of {recipe.package} for torch {torch} is not in the catalogue"
    return [Reason("source", text, f"known for torch {', '.join(known)}", "farm/catalog/torch.yaml")]
