"""The SM of a card that a user names."""

from collections.abc import Collection

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus
from farm.plan.recommend import machine_of
from farm.plan.variant import sm_number, sm_word


def sm_of(name: str, architectures: Collection[str] = ()) -> int:
    """Find the SM of a card.

    Args:
        name: The card's name, or its SM: `Tesla K40`, `sm_35`, `3.5`.
        architectures: SMs that decide between the chips of a name that was sold with several.

    Raises:
        UsageError: The name is not in the catalogue, or no PyTorch is built for the card.
    """
    number = _number_of(name)
    if number is not None:
        return number
    # An SM may have another name in variants: sm_101 became sm_110.
    chips = gpus.variant_sms(gpus.find(name))
    if not chips:
        raise _unknown(name)
    if len(chips) == 1 and sm_number(min(chips)) in gpus.of_no_variant():
        raise _no_variant(name, sm_number(min(chips)))
    if chips <= set(gpus.gpus().too_old):
        # All of its chips are too old: the newest stands for them, and the rules say so.
        return max(map(sm_number, chips))
    # The variant decides between the chips of a name: a request for sm35 means the GT 730 with
    # that chip.
    fitting = chips & set(architectures)
    if len(chips) > 1 and not fitting:
        in_order = sorted(chips, key=sm_number)
        raise UsageError(
            f"{name!r} was sold with several chips: {', '.join(in_order)}",
            hint=f"give its SM, as `farm detect` on its machine says: {_either(in_order)}",
        )
    return sm_number(min(fitting or chips))


def _number_of(name: str) -> int | None:
    """The SM that a name is the number of: `sm_35`, `3.5`; None for other names."""
    word = sm_word(name.strip())
    if not word:
        return None
    if word in catalog.architectures().architectures or word in gpus.gpus().too_old:
        return sm_number(word)
    if sm_number(word) in gpus.of_no_variant():
        raise _no_variant(name, sm_number(word))
    return None


def _unknown(name: str) -> UsageError:
    """Explain why a name has no SM."""
    company = gpus.maker(name)
    if company:
        return UsageError(
            f"{name!r} is a card of {company}: it runs no CUDA, and the farm builds for NVIDIA's "
            "cards",
            hint=f"for that machine: --variant {gpus.gpus().instead[company]}",
        )
    chips = gpus.families().get(name.strip().lower())
    if chips:
        return UsageError(
            f"{name!r} is the name of an architecture, not of a card",
            hint=f"one of its chips: {_either(chips)}",
        )
    near = gpus.nearest_names(name)
    hint = "give its SM, as `farm detect` on its machine says: --gpu sm_NN"
    if near:
        hint = f"nearest: {', '.join(near)}; or {hint}"
    return UsageError(f"the catalogue has no card {name!r}", hint=hint)


def example(name: str) -> str:
    """A variant for the machine that a card is in; one of other cards where there is none for
    it.
    """
    sm = sm_of(name)
    if gpus.without_variant(sm):
        return "sm35-avx-py311"
    machine = machine_of((sm,), f"linux-{gpus.machine(name, sm)}", "py311")
    return f"sm{sm}-{machine.cpus[0]}-py311"


def _either(sms: Collection[str]) -> str:
    return " or ".join(f"--gpu sm_{sm.removeprefix('sm')}" for sm in sms)


def _no_variant(name: str, sm: int) -> UsageError:
    return UsageError(
        f"{name!r} is sm_{sm}: nvcc can compile for it, and no PyTorch of the catalogue is built "
        "for it",
        hint="newer releases: tools/refresh-catalogue torch official",
    )
