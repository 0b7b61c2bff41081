"""The rules over every stack of the axes that matter most."""

from itertools import product

from farm.plan.compat.rules import check
from farm.plan.compat.stack import Stack
from farm.plan.variant import Variant, gpu_words


def test_every_cuda_torch_and_cudnn_for_every_gpu():
    """The whole product of the axes that matter most, about 25 000 stacks, with the cuDNNs at which
    support changes.
    """
    cudnns = [None, "8.7.0", "9.10.2", "9.13.0"]
    torches = [
        "1.12.1",
        "1.13.1",
        "2.0.1",
        "2.1.2",
        "2.3.1",
        "2.5.1",
        "2.6.0",
        "2.8.0",
        "2.12.1",
        "2.15.0",
    ]
    cudas = ["10.2", "11.3", "11.4", "11.8", "12.1", "12.6", "12.8", "13.0", "13.5"]
    axes = (gpu_words(), ("linux", "windows"), cudas, torches, cudnns)
    clean = 0
    for gpu, platform, cuda, torch, cudnn in product(*axes):
        stack = Stack(
            "torch", Variant(gpu, "avx2", "py311"), platform, cuda=cuda, torch=torch, cudnn=cudnn
        )
        found = check(stack)
        assert all(reason.text and reason.fact and reason.source for reason in found)
        clean += not any(reason.severity == "error" for reason in found)
    assert clean > 1000  # the rules do not refuse everything
