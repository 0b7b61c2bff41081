"""The SM of a card that a user names."""

from collections.abc import Collection

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus
from farm.plan.recommend import machine_of
from farm.plan.variant import sm_number, sm_word


def sm_of(name: str, architectures: Collection[str] = ()) -> int:
    """The SM of a card by name or number; of a name with several chips, the one among
    `architectures`.
    """
    word = sm_word(name.strip())
    if word in catalog.architectures().architectures or word in gpus.gpus().too_old:
        return sm_number(word)
    if word.removeprefix("sm").isdecimal() and sm_number(word) in _of_no_variant():
        raise _no_variant(name, sm_number(word))
    # An SM may have another name in variants: sm_101 became sm_110.
    known = {gpus.gpus().renamed.get(card.sm, card.sm) for card in gpus.find(name)}
    if not known and (company := gpus.maker(name)):
        raise UsageError(
            f"{name!r} is a card of {company}: it runs no CUDA, and the farm builds for NVIDIA's "
            "cards",
            hint=f"for that machine: --variant {gpus.gpus().instead[company]}",
        )
    family = name.strip().lower()
    chips = [
        sm
        for sm, one in catalog.architectures().architectures.items()
        if one.name.lower() == family
    ]
    if not known and chips:
        hint = f"one of its chips: {_either(chips)}"
        raise UsageError(f"{name!r} is the name of an architecture, not of a card", hint=hint)
    if not known:
        near = gpus.nearest_names(name)
        hint = f"nearest: {', '.join(near)}; or give" if near else "give"
        hint += " its SM, as `farm detect` on its machine says: --gpu sm_NN"
        raise UsageError(f"the catalogue has no card {name!r}", hint=hint)
    if len(known) == 1 and (sm := sm_number(min(known))) in _of_no_variant():
        raise _no_variant(name, sm)
    # All of its chips are too old: the newest stands for them, and the rules say so.
    if known <= set(gpus.gpus().too_old):
        return int(max(known, key=lambda sm: int(sm[2:])).removeprefix("sm"))
    # The variant decides between the chips of a name: whoever asks for sm35 has the GT 730 with
    # that chip.
    ours = known & set(architectures)
    if len(known) > 1 and not ours:
        raise UsageError(
            f"{name!r} was sold with several chips: {', '.join(sorted(known))}",
            hint=f"give its SM, as `farm detect` on its machine says: {_either(sorted(known))}",
        )
    return int(min(ours or known).removeprefix("sm"))


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


def _of_no_variant() -> set[int]:
    """SMs that some nvcc of the catalogue compiles for and that are no variant's: sm_88, sm_107."""
    known = {sm for toolkit in catalog.toolkits().values() for sm in toolkit.sm}
    named = {*catalog.architectures().architectures, *gpus.gpus().too_old, *gpus.gpus().renamed}
    return known - {sm_number(name) for name in named}
