"""Can it be built? Each rule gives the reason why not, the fact it rests on, and the nearest that would work.

Versions compare as `packaging` compares them. An empty list of reasons is a yes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.version import Version

from farm import catalog
from farm.catalog import redist
from farm.variant import Variant, sm_number


@dataclass(frozen=True)
class Stack:
    """What a build would use, resolved but not yet judged. `cuda` is None for builds without CUDA.

    `components` are what the recipe takes of a toolkit.
    """

    package: str
    variant: Variant
    platform: str
    base: str
    toolkit: str | None
    cuda: str | None
    torch: str | None
    cudnn: str | None
    components: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reason:
    """Why a stack cannot be built."""

    rule: str
    text: str
    fact: str
    source: str
    nearest: str | None = None

    def __str__(self) -> str:
        return self.text + (f"; {self.nearest}" if self.nearest else "")


Rule = Callable[[Stack], Iterator[Reason]]


def cuda_targets_gpu(stack: Stack) -> Iterator[Reason]:
    """Nvcc can compile for every SM of the variant."""
    toolkits = catalog.toolkits()
    if stack.cuda is None:
        return
    toolkit = toolkits.get(stack.cuda)
    if toolkit is None:
        known = ", ".join(toolkits)
        yield Reason("cuda", f"CUDA {stack.cuda} is not in the catalogue", f"known: {known}", "farm/catalog/cuda.yaml")
        return
    for name in stack.variant.architectures:
        sm = sm_number(name)
        if sm in toolkit.sm:
            continue
        able = [version for version, other in toolkits.items() if sm in other.sm]
        card = catalog.architectures().architectures[name]
        near = None
        if able:
            best = able[-1] if Version(able[-1]) < Version(stack.cuda) else able[0]
            near = f"nearest that can: CUDA {best} (of {', '.join(able)})"
        yield Reason(
            "cuda-sm",
            f"CUDA {stack.cuda} cannot compile for {name} ({card.name}, {card.example})",
            f"nvcc of CUDA {toolkit.release} targets sm {', '.join(map(str, toolkit.sm))}",
            toolkit.source,
            near,
        )


def toolkit_has_cuda(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has this CUDA version."""
    base = catalog.debian_releases()[stack.base]
    if stack.toolkit == "debian" and stack.cuda != base.cuda:
        yield Reason(
            "toolkit-cuda",
            f"the debian toolkit of {stack.base} has CUDA {base.cuda}, not {stack.cuda}",
            f"nvidia-cuda-toolkit of {base.suite} is {base.cuda}",
            base.source,
            f"nearest that can: --cuda {base.cuda}, or --toolkit nvidia",
        )


def toolkit_has_components(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has every component that the recipe names, and cuDNN where it is wanted."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    if toolkit is None:
        return
    wanted, other = list(stack.components), None
    if stack.toolkit == "debian":
        base = catalog.debian_releases()[stack.base]
        have, source, other = list(base.components), base.source, "nearest that can: --toolkit nvidia"
        wanted += ["cuDNN"] if stack.cudnn else []
    else:
        provider = catalog.nvidia_provider()
        archives = set(redist.components("cuda", toolkit.release, "linux-x86_64"))
        have, source = (
            [name for name, parts in provider.components.items() if archives.issuperset(parts)],
            provider.source,
        )
    missing = ", ".join(name for name in wanted if name not in have)
    if missing:
        yield Reason(
            "toolkit-components",
            f"the {stack.toolkit} toolkit with CUDA {stack.cuda} has no {missing}, which {stack.package} needs",
            f"components: {', '.join(have)}",
            source,
            other,
        )


def host_compiler(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the base image's gcc."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    base = catalog.debian_releases()[stack.base]
    if toolkit and base.gcc > toolkit.gcc_max:
        yield Reason(
            "cuda-gcc",
            f"CUDA {stack.cuda} takes gcc up to {toolkit.gcc_max}, {stack.base} has gcc {base.gcc}",
            f"crt/host_config.h of CUDA {toolkit.release}",
            toolkit.source,
        )


def python_of_base(stack: Stack) -> Iterator[Reason]:
    """The base image has this Python."""
    base = catalog.debian_releases()[stack.base]
    if stack.platform == "linux" and stack.variant.python != base.python:
        yield Reason(
            "base-python",
            f"{stack.base} has {base.python}, not {stack.variant.python}",
            f"python3 of {base.suite}",
            base.source,
            f"nearest that can: {stack.variant.group}-{base.python}",
        )


def machine_of_cpu(stack: Stack) -> Iterator[Reason]:
    """The farm's Linux images are x86_64."""
    if stack.variant.machine != "x86_64":
        yield Reason(
            "machine",
            f"{stack.variant.cpu} is for {stack.variant.machine}; the channel builds for x86_64",
            "the base images and toolkits of the catalogue are x86_64",
            "farm/catalog/debian.yaml",
        )


def torch_release(stack: Stack) -> Iterator[Reason]:
    """The PyTorch release takes this CUDA, these SMs and this Python."""
    if stack.package != "torch":
        return
    releases = catalog.torch_releases()
    release = releases.get(stack.torch or "")
    if release is None:
        known = ", ".join(releases)
        text = f"torch {stack.torch} is not in the catalogue" if stack.torch else "no version of torch was chosen"
        yield Reason("torch", text, f"known: {known}", "farm/catalog/torch.yaml", f"nearest that can: --torch {known}")
        return
    if stack.cuda in catalog.toolkits() and Version(str(stack.cuda)) < Version(release.cuda_min):
        yield Reason(
            "torch-cuda",
            f"torch {stack.torch} needs CUDA {release.cuda_min} or newer, not {stack.cuda}",
            f"cmake/public/cuda.cmake refuses CUDA below {release.cuda_min}",
            release.source,
        )
    if stack.variant.python not in release.pythons:
        yield Reason(
            "torch-python",
            f"torch {stack.torch} does not build for {stack.variant.python}",
            f"Pythons of the release: {', '.join(release.pythons)}",
            release.source,
            f"nearest that can: {stack.variant.group}-{release.pythons[-1]}",
        )
    low = [sm for sm in stack.variant.sms if sm < release.sm_min]
    if low:
        yield Reason(
            "torch-sm",
            f"torch {stack.torch} starts at sm_{release.sm_min}, not sm_{low[0]}",
            f"lowest SM: {release.sm_min}",
            release.source,
        )


def cudnn_for_gpu(stack: Stack) -> Iterator[Reason]:
    """CuDNN has code for the lowest SM and is made for this CUDA."""
    if stack.cudnn is None or stack.cuda not in catalog.toolkits() or not stack.variant.sms:
        return
    releases = catalog.cudnn_releases()
    release = releases.get(stack.cudnn)
    if release is None:
        known = ", ".join(releases)
        yield Reason(
            "cudnn", f"cuDNN {stack.cudnn} is not in the catalogue", f"known: {known}", "farm/catalog/cudnn.yaml"
        )
        return
    lowest = min(stack.variant.sms)
    if lowest < release.sm_min:
        able = [name for name, other in releases.items() if other.sm_min <= lowest]
        yield Reason(
            "cudnn-sm",
            f"cuDNN {stack.cudnn} has no code below sm_{release.sm_min}; the variant needs sm_{lowest}",
            f"lowest SM in the binaries of {release.version}: {release.sm_min}",
            release.source,
            f"nearest that can: --cudnn {able[-1]}" if able else None,
        )
    if Version(str(stack.cuda)).major not in release.cuda_majors:
        yield Reason(
            "cudnn-cuda",
            f"cuDNN {stack.cudnn} is not made for CUDA {stack.cuda}",
            f"CUDA majors of {release.version}: {', '.join(map(str, release.cuda_majors))}",
            release.source,
        )


RULES: tuple[Rule, ...] = (
    cuda_targets_gpu,
    toolkit_has_cuda,
    toolkit_has_components,
    host_compiler,
    python_of_base,
    machine_of_cpu,
    torch_release,
    cudnn_for_gpu,
)


def reasons(stack: Stack) -> list[Reason]:
    """Every reason why the stack cannot be built, in the order of the rules; empty: it can."""
    return [reason for rule in RULES for reason in rule(stack)]
