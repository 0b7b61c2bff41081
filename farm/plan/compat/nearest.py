"""The nearest stack that a rule no longer objects to: small changes to what was asked, judged by
the same rules.

Only what was asked or chosen is changed, never the card, the platform or what is None. A change
counts only if no rule that was content before objects now. The distance is, in this order: the
errors left; whether a default gives way or what was asked for, and of that the first before the
last; doubts about the new value; the reason's own order of what to change; how many places of the
catalogue the value moves.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, replace
from typing import Any

from farm import catalog
from farm.catalog import number
from farm.plan.compat.compilers import msc_ver, toolset
from farm.plan.compat.reason import Reason
from farm.plan.compat.rules import check
from farm.plan.compat.stack import Stack, arch_list, spell, targets
from farm.plan.options import OPTIONS
from farm.plan.variant import PYTHONS
from farm.platforms.facts import facts

MAX_CHANGES = 3
NEWEST_GCC = 15
MAX_ROUNDS = 8
Change = tuple[str, Any]
"""A field of the stack and another value for it."""
Names = tuple[str, ...]
"""Fields of the stack, the order says which counts more."""


def _by_distance(known: list[str], current: str) -> list[str]:
    """The other values, closest first; where two are equally close, the older one."""
    place = _place(known, current)
    distances = []
    for index, value in enumerate(known):
        if value != current:
            distances.append((abs(index - place), value))
    return [value for _, value in sorted(distances)]


def _place(values: list[str], current: str) -> float:
    """The place of a value in a list; between its neighbours, half a place from each, where it is
    none of them.
    """
    if current in values:
        return float(values.index(current))
    parts = [part for part in current.split(".") if part.isascii() and part.isdecimal()]
    digits = tuple(int(part[:6]) for part in parts)
    return sum(number(value) < digits for value in values) - 0.5


def _drivers(stack: Stack) -> list[str]:
    # Where some toolkit or card begins or ends: between two of these the rules say the same.
    drivers = set()
    for toolkit in catalog.toolkits().values():
        floor = toolkit.driver(stack.platform)
        if floor:
            drivers.add(floor)
    for card in catalog.architectures().architectures.values():
        for branch in (card.last_driver, card.first_driver, card.wanted_driver):
            if branch:
                drivers.add(str(branch))
    near = number(str(stack.driver))[0]

    def distance(driver: str) -> tuple[int, tuple[int, ...]]:
        version = number(driver)
        return abs(version[0] - near), version

    return sorted(drivers, key=distance)


def _options(stack: Stack, field: str) -> Iterator[Change]:
    """Fields of the stack with other values, to get another `field`, closest first."""
    words_chosen = dict(stack.words)
    if field in _CHANGES:
        yield from _CHANGES[field](stack)
    elif field in words_chosen:
        for word in OPTIONS[field].choices:
            if word != words_chosen[field]:
                yield "words", tuple((words_chosen | {field: word}).items())
    elif getattr(stack, field, None) is not None:
        for value in _values(stack, field):
            yield field, value


def _other_pythons(stack: Stack) -> Iterator[Change]:
    variant = stack.variant
    near = PYTHONS.index(variant.python)
    closest = sorted(PYTHONS, key=lambda name: abs(PYTHONS.index(name) - near))
    # Who asks for a free-threaded Python is served by another one of them first, and the other
    # way round.
    is_free = variant.python.endswith("t")
    for python in sorted(closest, key=lambda name: name.endswith("t") != is_free):
        yield "variant", replace(variant, python=python)


def _other_cpus(stack: Stack) -> Iterator[Change]:
    variant = stack.variant
    # Levels of the same machine: another machine is another wheel, not a smaller demand.
    alike = _levels_of(variant.machine)
    near = alike.index(variant.cpu)
    for cpu in sorted(alike, key=lambda name: abs(alike.index(name) - near)):
        yield "variant", replace(variant, cpu=cpu)


def _levels_of(machine: str) -> list[str]:
    levels = catalog.cpu_levels()
    return [name for name, level in levels.items() if level.machine == machine]


def _cpus_of_arm(stack: Stack) -> Iterator[Change]:
    if "aarch64" in facts(stack.platform).built_on:
        for cpu in _levels_of("aarch64"):
            yield "variant", replace(stack.variant, cpu=cpu)


def _card_as_gpu(stack: Stack) -> Iterator[Change]:
    gpu = f"sm{stack.gpu}"
    if gpu in catalog.architectures().architectures:
        yield "variant", replace(stack.variant, gpu=gpu)


def _other_arch_lists(stack: Stack) -> Iterator[Change]:
    if stack.arch_list is not None:
        # First without PTX, which is the smaller change; then the list that the cards need.
        yield "arch_list", arch_list(stack).replace("+PTX", "")
        yield "arch_list", spell(targets(stack))


def _without_ptx(_stack: Stack) -> Iterator[Change]:
    yield "ptx", False


def _nvidias_toolkit(_stack: Stack) -> Iterator[Change]:
    yield "toolkit", "nvidia"


def _fewer_switches(stack: Stack) -> Iterator[Change]:
    for name in sorted(stack.switches):
        yield "switches", stack.switches - {name}


_CHANGES: dict[str, Callable[[Stack], Iterator[Change]]] = {
    "python": _other_pythons,
    "cpu": _other_cpus,
    "cpu_of_arm": _cpus_of_arm,
    "gpu_of_variant": _card_as_gpu,
    "arch_list": _other_arch_lists,
    "ptx": _without_ptx,
    "toolkit": _nvidias_toolkit,
    "switches": _fewer_switches,
}
"""What changes a field that is no value of its own, or whose values are not in the catalogue."""


def _values(stack: Stack, field: str) -> list[Any]:
    current = getattr(stack, field)
    match field:
        case "cuda":
            return _by_distance(list(catalog.toolkits()), current)
        case "torch":
            return _by_distance(list(catalog.torch_releases()), current)
        case "cudnn":
            return _by_distance(list(catalog.cudnn_releases()), current)
        case "numpy":
            return catalog.pythons().numpy_choices
        case "driver":
            return _drivers(stack)
        case "msvc":
            return sorted(_compilers_of_msvc(), key=lambda value: abs(value - current))
        case "base":
            return list(catalog.debian_releases())
        case "gcc":
            return sorted(range(1, NEWEST_GCC + 1), key=lambda value: abs(value - current))
    raise KeyError(field)


def _compilers_of_msvc() -> Iterator[int]:
    for product in catalog.msvc().products.values():
        yield from range(msc_ver(product.first), msc_ver(product.last) + 1)


def _rules(found: list[Reason], *, warnings: bool) -> set[str]:
    return {reason.rule for reason in found if reason.blocks != warnings}


def nearest(
    stack: Stack,
    reason: Reason,
    before: list[Reason],
    only: Collection[str] | None = None,
    keep: Names = (),
) -> Stack | None:
    """The nearest stack without the reason and without new errors; None: there is none within three
    changes.

    A warning is only worth one change, and no new warning. `before`: what the rules hold against
    `stack`. `only`: the fields that may be changed. `keep`: the fields that were asked for, in that
    order: the last is kept longest.
    """
    search = _Search(stack, reason, before, keep)
    level = [(stack, reason.change)]
    for _ in range(MAX_CHANGES if reason.blocks else 1):
        best: tuple[tuple[int, ...], Stack] | None = None
        next_level: list[tuple[Stack, Names]] = []
        for field, changed in search.changes(level, only):
            after = search.reasons_after(changed)
            if after is None:
                continue
            # It trades one reason for another: worth a second change, from there.
            new_error = search.new_error(after)
            if new_error:
                next_level.append((changed, new_error.change))
                continue
            if search.warns_anew(after) and not reason.blocks:
                continue
            cost = search.cost(field, after)
            # Changes come in the reason's order of fields and then closest first: the first of
            # equals is the nearest.
            if not any(cost):
                return changed
            if best is None or cost < best[0]:
                best = (cost, changed)
        if best is not None:
            return best[1]
        level = next_level
    return None


class _Search:
    """A search for the nearest stack without a reason, and what it has tried."""

    def __init__(self, stack: Stack, reason: Reason, before: list[Reason], keep: Names) -> None:
        self.stack = stack
        self.reason = reason
        self.keep = keep
        self.errors = _rules(before, warnings=False)
        self.warnings = _rules(before, warnings=True)
        self.tried: set[tuple[str, Stack]] = set()
        """Fields and stacks: what was of no use by the change of a field is of none later."""

    def changes(
        self, level: list[tuple[Stack, Names]], only: Collection[str] | None
    ) -> Iterator[tuple[str, Stack]]:
        """The stacks that one more change makes, each once, with the field that was changed."""
        for start, change in level:
            for field in change:
                if only is not None and field not in only:
                    continue
                for name, value in _options(start, field):
                    changed = replace(start, **{name: value})
                    if (field, changed) not in self.tried:
                        self.tried.add((field, changed))
                        yield field, changed

    def reasons_after(self, changed: Stack) -> list[Reason] | None:
        """What the rules hold against a changed stack; None: the reason is still there.

        Such a change is of no use, alone or with others. Most changes end here.
        """
        after = check(changed)
        if changed == self.stack or any(remaining.rule == self.reason.rule for remaining in after):
            return None
        return after

    def new_error(self, after: list[Reason]) -> Reason | None:
        """The first error that was not there before."""
        for remaining in after:
            if remaining.blocks and remaining.rule not in self.errors:
                return remaining
        return None

    def warns_anew(self, after: list[Reason]) -> bool:
        return bool(_rules(after, warnings=True) - self.warnings)

    def cost(self, field: str, after: list[Reason]) -> tuple[int, ...]:
        """The distance of a stack that was changed in a field, the smallest first."""
        errors_left = 0
        doubts = 0
        same_field = 0
        for remaining in after:
            if remaining.blocks:
                errors_left += 1
                same_field += field in remaining.change
            elif remaining.change[:1] == (field,):
                doubts += 1
        asked_for = self.keep.index(field) + 1 if field in self.keep else 0
        return errors_left, asked_for, doubts, same_field


def difference(stack: Stack, other: Stack) -> str:
    """What leads from one stack to the other: options as `farm plan` takes them, then what it does
    not ask about.

    `--cuda 12.8 --cudnn 9.7.1, numpy 1.26.4, without flash attention`
    """
    words: list[str] = []
    questions: list[str] = []
    for field in fields(Stack):
        before = getattr(stack, field.name)
        after = getattr(other, field.name)
        if before == after or field.name == "base":  # a plan chooses the base image itself
            continue
        if field.name == "switches":
            for name in sorted(before - after):
                title = catalog.features()[catalog.switches()[name]].title
                questions.append(f"without {title}")
        elif field.name == "words":
            words += [f"--{name} {word}" for name, word in after if (name, word) not in before]
        elif field.name == "ptx":
            words.append(OPTIONS["ptx"].typed(after))
        elif field.name == "msvc":
            questions.append(f"MSVC {toolset(after)}")
        elif field.name in ("arch_list", "driver", "gcc", "numpy"):
            questions.append(f"{field.name.replace('_', ' ')} {after}")
        else:
            words.append(f"--{field.name} {after}")
    if words:
        questions.insert(0, " ".join(words))
    return ", ".join(questions)


def advise(stack: Stack, found: list[Reason], keep: Names = ()) -> list[Reason]:
    """The reasons with the nearest that would do away with each; `keep` as for `nearest`."""
    return [_advised(stack, reason, found, keep) for reason in found]


def _advised(stack: Stack, reason: Reason, before: list[Reason], keep: Names) -> Reason:
    if not reason.change:
        return reason
    solved = nearest(stack, reason, before, keep=keep)
    if solved is None:
        return reason
    return replace(reason, nearest=difference(stack, solved) or None)


def _better(stack: Stack, only: Collection[str] | None, keep: Names) -> tuple[Stack, list[Reason]]:
    """The stack after doing away with one error after the other, and the errors that are left."""
    errors: list[Reason] = []
    for _ in range(MAX_ROUNDS):
        reasons = check(stack)
        errors = [reason for reason in reasons if reason.blocks]
        candidate = _without_an_error(stack, errors, reasons, only, keep)
        if candidate is None:
            break
        stack = candidate
    return stack, errors


def _without_an_error(
    stack: Stack,
    errors: list[Reason],
    before: list[Reason],
    only: Collection[str] | None,
    keep: Names,
) -> Stack | None:
    """The nearest stack without the first error that can be done away with.

    One at a time: doing away with it often does away with others.
    """
    for reason in errors:
        if reason.change:
            candidate = nearest(stack, reason, before, only, keep)
            if candidate is not None:
                return candidate
    return None


def solve(stack: Stack, keep: Names = ()) -> Stack | None:
    """The nearest stack without any error; None: none was found."""
    solved, errors = _better(stack, None, keep)
    if errors:
        return None
    return solved


def apply_defaults(stack: Stack, free: Collection[str]) -> Stack:
    """The stack with other values of the `free` fields, which are defaults: these yield to explicit
    choices.
    """
    return _better(stack, free, ())[0]
