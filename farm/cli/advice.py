"""What to say first about PyTorch on a card: that upstream's own wheel runs there, if it does."""

from dataclasses import dataclass

from farm import catalog
from farm.catalog import number
from farm.plan.compat import official, official_cpu
from farm.plan.compat.official import Question
from farm.plan.file import Plan
from farm.plan.options import OPTIONS


@dataclass(frozen=True)
class Advice:
    """A wheel of PyTorch's own that runs as it is.

    Attributes:
        torch: Its release.
        cuda: Its CUDA; None for a CPU.
        pip: The line that installs it.
        end: Upstream's announcement that later releases leave the cards out.
    """

    torch: str
    cuda: str | None
    pip: str
    end: str | None

    @property
    def text(self) -> str:
        """The advice in one sentence, without the line to copy."""
        if self.cuda is None:
            return f"PyTorch's own wheel of torch {self.torch} runs on such CPUs"
        return f"PyTorch's own wheel of torch {self.torch} with CUDA {self.cuda} runs on such cards"


def advice(question: Question) -> Advice | None:
    """Find the wheel of PyTorch that runs on the cards without a restriction.

    Args:
        question: The cards, if any, and what is known of the machine.

    Returns:
        The newest one; None where there is none, or where something of it does not work there.
    """
    old_cpu = catalog.official().old_cpus.get(question.cpu or "")
    if not question.sms:
        on_cpu = official_cpu.best(question)
        if not on_cpu.runs or on_cpu.wheel is None or old_cpu:
            return None
        return Advice(on_cpu.wheel.torch, None, on_cpu.wheel.pip, on_cpu.newer)
    answer = official.best(question)
    if not answer.runs or answer.wheel is None or answer.without or old_cpu:
        return None
    ends = (official.end_of_support(sm) for sm in question.sms)
    end = next((row for row in ends if row), None)
    wheel = answer.wheel
    return Advice(wheel.torch, wheel.cuda, wheel.pip, end.text if end else None)


def advice_for(plan: Plan) -> Advice | None:
    """Find the wheel of PyTorch that makes a build of torch needless.

    A build with options of its own is not needless: upstream's wheel has none of them.
    """
    variant = plan.parsed_variant
    if plan.package != "torch" or not variant.sms or _has_own_options(plan):
        return None
    place = f"{plan.platform}-{variant.machine}"
    answer = advice(Question(variant.sms, place, python=variant.python, cpu=variant.cpu))
    if answer is None or number(answer.torch) < number(str(plan.options["torch"])):
        return None
    return answer


def _has_own_options(plan: Plan) -> bool:
    """True if an option other than the versions was chosen on the command line or by FARM_*."""
    chosen_names = [name for name in OPTIONS if name in plan.origins and plan.options.get(name)]
    versions = ("torch", "cuda", "cudnn")
    return any(
        plan.origins[name].startswith(("--", "FARM_"))
        for name in chosen_names
        if name not in versions
    )
