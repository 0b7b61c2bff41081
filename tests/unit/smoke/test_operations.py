"""Checks of a card's operators, with a torch that only knows on which device a tensor was made."""

from types import SimpleNamespace

import pytest

from farm.smoke.probe.operations import check_indexing
from farm.smoke.probe.recorder import FailedError


class Tensor:
    """Whatever is done with it, the result is of the same device; `cpu()` copies it and changes no
    number.
    """

    def __init__(self, made_on="cpu"):
        self.made_on = made_on

    def __getattr__(self, _name):
        return lambda *_, **__: self

    def __getitem__(self, _place):
        return self

    def __gt__(self, _other):
        return self

    def __mod__(self, _other):
        return self

    def __neg__(self):
        return self

    def to(self, device):
        return Tensor(device)


def torch(wrong):
    """A torch whose device `wrong` gets other numbers."""
    return SimpleNamespace(
        Generator=Tensor,
        randint=lambda *_, **__: Tensor(),
        zeros_like=lambda tensor: tensor,
        where=lambda _, tensor, __: tensor,
        equal=lambda one, other: wrong not in (one.made_on, other.made_on),
    )


def test_indexing_is_compared_with_the_cpus():
    assert "scatter" in check_indexing(torch(wrong=None), "cuda")
    with pytest.raises(FailedError, match="gather by rows: other numbers than on the CPU"):
        check_indexing(torch(wrong="cuda"), "cuda")
