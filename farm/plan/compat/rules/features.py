"""The features of PyTorch: where one does something, and where it is off."""

from collections.abc import Iterator

from farm import catalog
from farm.catalog import number
from farm.catalog.models import Feature
from farm.plan.compat.reason import Ground, Reason, Severity, because, ground
from farm.plan.compat.stack import Stack, sm_name, targets


def switches_work(stack: Stack) -> Iterator[Reason]:
    """The switches that were asked for do something on this platform, GPU, CUDA and CPU."""
    for name in sorted(stack.switches):
        yield from feature_works(stack, catalog.switches()[name])


def feature_off(stack: Stack, name: str) -> str | None:
    """Why a feature is off for the stack, also where that is in doubt; None: nothing is against
    it.
    """
    return next((reason.text for reason in feature_works(stack, name)), None)


def feature_works(stack: Stack, name: str) -> Iterator[Reason]:
    """The feature does something on the platform, GPU, CUDA and CPU of the stack."""
    feature = catalog.features()[name]
    part = (feature.switch or name).removeprefix("USE_")
    rule = f"switch-{part.lower().replace('_', '-')}"
    yield from _on_the_machine(stack, feature, rule, part)
    yield from _for_the_cards(stack, feature, rule, part)
    yield from _with_the_cuda(stack, feature, rule, part)
    cpu = stack.variant.cpu
    if feature.cpu is not None and name in catalog.cpu_levels()[cpu].torch_off:
        yield because(
            rule,
            f"{part} needs {feature.cpu} or newer: builds for {cpu} CPUs are without it",
            f"lowest of {', '.join(catalog.cpu_levels())} with {part}: {feature.cpu}",
            ground(feature, "cpu"),
            change=("switches", "cpu"),
        )


def _on_the_machine(stack: Stack, feature: Feature, rule: str, part: str) -> Iterator[Reason]:
    """The platform and machine have the feature, and the options choose it."""
    machine = stack.variant.machine
    if stack.platform not in feature.platforms:
        why = feature.elsewhere.get(stack.platform, "CMake turns it off there")
        yield because(
            rule,
            f"{part} is not for {stack.platform}: {why}",
            f"{part} works on {', '.join(feature.platforms)}",
            ground(feature, "platforms"),
            change=("switches",),
        )
    if feature.machines is not None and machine not in feature.machines:
        yield because(
            rule,
            f"{part} is for {' and '.join(feature.machines)}, not {machine}",
            f"machines of {part}: {', '.join(feature.machines)}",
            ground(feature, "machines"),
            change=("switches",),
        )
    if feature.gpu and feature.sm_min is None and not targets(stack):
        yield because(
            rule,
            f"{part} is for GPUs, and the wheel is for the CPU alone",
            f"{part} depends on CUDA",
            ground(feature, "gpu"),
            change=("switches",),
        )
    words_chosen = dict(stack.words)
    for option, word in feature.words.items():
        if words_chosen.get(option) != word:
            yield because(
                rule,
                f"{option.upper()} is {words_chosen.get(option)}",
                f"{part}: --{option} {word}",
                ground(feature, "words"),
            )


def _with_the_cuda(stack: Stack, feature: Feature, rule: str, part: str) -> Iterator[Reason]:
    """The CUDA has what the feature needs."""
    if feature.cuda_min is None or stack.cuda not in catalog.toolkits():
        return
    if number(stack.cuda) < number(feature.cuda_min):
        # An older CUDA lacks it for certain, whatever is in doubt about the first that has it.
        yield because(
            rule,
            f"{part} needs CUDA {feature.cuda_min} or newer, not {stack.cuda}",
            f"lowest CUDA of {part}: {feature.cuda_min}",
            ground(feature, "cuda_min"),
            change=("switches", "cuda"),
        ).with_severity("error")


def _for_the_cards(stack: Stack, feature: Feature, rule: str, part: str) -> Iterator[Reason]:
    """The kernels of the feature run on the cards."""
    cards = targets(stack)
    if feature.sm_min is None or (cards and cards[0] >= feature.sm_min):
        return
    lowest = sm_name(cards[0]) if cards else stack.variant.gpu
    doubt = None
    severity: Severity = "error"
    # Where only some of the cards are too old, the kernels are built for the others. Whether such a
    # build succeeds is in doubt.
    if cards and cards[-1] >= feature.sm_min:
        doubt = "that the build fails where only some SMs are lower"
        severity = "warning"
    yield because(
        rule,
        f"{part} needs sm_{feature.sm_min} or newer, not {lowest}",
        f"lowest SM of its kernels: {feature.sm_min}",
        Ground(feature.sources.get("sm_min", "sm_min"), doubt),
        severity=severity,
        change=("switches",),
    )
