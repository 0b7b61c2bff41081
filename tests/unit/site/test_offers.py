"""What the farm offers, as the site reads it from the matrix."""

from farm.plan.matrix import load_matrix


def find(offered, **wanted):
    return [offer for offer in offered if all(getattr(offer, name) == value for name, value in wanted.items())]


def test_every_build_of_the_matrix_is_an_offer(offered, root):
    assert len(offered) == len(list(load_matrix(root).builds()))
    others = ("kepler", "debian", "legacy", "rtx50", "cuda13", "windows")
    branches = [offer for offer in offered if not offer.channel.startswith(others)]
    assert len(branches) == 699
    assert not [offer for offer in branches if offer.blocked]


def test_an_offer_says_what_is_off_and_which_driver_it_needs(offered):
    (avx,) = find(offered, channel="main", package="torch", gpu="sm80", cpu="avx", cuda="12.8", platform="linux")
    assert avx.version == "2.8.0+cu128.sm80.avx"
    assert "USE_FBGEMM" in avx.off
    assert "USE_FLASH_ATTENTION" not in avx.off
    assert avx.driver == "525"  # the branch that CUDA 12 needs on Linux: NVIDIA, minor-version compatibility
    (cpu,) = find(offered, channel="main", package="torch", gpu="cpu", cpu="avx2", platform="linux")
    assert (cpu.cuda, cpu.driver, cpu.key) == (None, None, "torch|2.8.0+cpu.avx2|py313|linux")
