"""Other makers of PyTorch with CUDA (`makers.yaml`)."""

from functools import cache

from pydantic import Field

from farm.base.yamlfile import Model, load
from farm.catalog import FOLDER
from farm.catalog.models import VERSION


class Maker(Model):
    """One kind of build by someone else. `install` may hold `{arch}`, the SM of the card."""

    maker: str
    torch: str = Field(pattern=VERSION)
    since: str = Field(pattern=VERSION)
    cuda: str = Field(pattern=VERSION)
    platforms: list[str]
    sm: list[int]
    ptx: list[int]
    cudnn_sm: int | None
    pythons: list[str] | None
    install: str
    has: str
    lacks: str
    source: str
    unconfirmed: str


class _Makers(Model):
    sources: dict[str, str]
    makers: list[Maker]


@cache
def _file() -> _Makers:
    return load(FOLDER / "makers.yaml", _Makers)


def makers() -> list[Maker]:
    """Every kind, the newest release of each maker first."""
    return _file().makers


def source(maker: Maker) -> str:
    return _file().sources[maker.source]
