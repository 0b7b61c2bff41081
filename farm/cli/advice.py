"""What to say first about PyTorch on a card: that upstream's own wheel runs there, if it does."""

from dataclasses import dataclass

from farm import catalog
from farm.catalog import number
from farm.plan.compat import official, official_cpu, official_wheels
from farm.plan.compat.answer import Question
from farm.plan.file import Plan
from farm.plan.options import OPTIONS


@dataclass(frozen=True)
class Advice:
    """A wheel of PyTorch's own that runs as it is.

    Attributes:
        torch: Its release.
        cuda: Its CUDA; None: a wheel for CPUs.
        pip: The line that installs it.
        end: Upstream's announcement that later releases leave the cards out.
        python: The Python that it is for; None: any of its own.
    """

    torch: str
    cuda: str | None
    pip: str
    end: str | None
    python: str | None = None

    @property
    def text(self) -> str:
        """The advice in one sentence, without the line to copy."""
        if self.cuda is None:
            return f"PyTorch's own wheel of torch {self.torch} for CPUs runs there"
        return f"PyTorch's own wheel of torch {self.torch} with CUDA {self.cuda} runs on such cards"


def advice(question: Question) -> Advice | None:
    """Find the wheel of PyTorch that runs on the cards without a restriction.

    Args:
        question: The cards, if any, and what is known of the machine.

    Returns:
        The newest one; None where there is none, or where something of it does not work there.
    """
    if question.cpu in catalog.official().old_cpus:
        return None
    if not question.sms:
        return _for_cpus(question)
    answer = official.best(question)
    if not answer.runs or answer.wheel is None or answer.without:
        return None
    announcement = None
    for end in map(official_wheels.end_of_support, question.sms):
        if end:
            announcement = end.text
            break
    wheel = answer.wheel
    return Advice(wheel.torch, wheel.cuda, wheel.pip, announcement, question.python)


def _for_cpus(question: Question) -> Advice | None:
    """The same for a machine without a GPU; upstream must say that it runs on such a CPU."""
    answer = official_cpu.best(question)
    if not answer.runs or answer.wheel is None or question.cpu is None:
        return None
    return Advice(answer.wheel.torch, None, answer.wheel.pip, answer.newer, question.python)


def advice_for(plan: Plan) -> Advice | None:
    """Find the wheel of PyTorch that makes a build of torch needless.

    A build with options of its own is not needless: upstream's wheel has none of them.
    """
    variant = plan.parsed_variant
    if plan.package != "torch" or _has_own_options(plan):
        return None
    place = f"{plan.platform}-{variant.machine}"
    answer = advice(Question(variant.sms, place, python=variant.python, cpu=variant.cpu))
    if answer is None or number(answer.torch) < number(str(plan.options["torch"])):
        return None
    return answer


def _has_own_options(plan: Plan) -> bool:
    """True if an option other than the versions was chosen on the command line or by FARM_*.

    What ci/farm.yaml and the channel choose counts for every build of the project.
    """
    for name in OPTIONS:
        if name in ("torch", "cuda", "cudnn") or not plan.options.get(name):
            continue
        if plan.origins.get(name, "").startswith(("--", "environment ")):
            return True
    return False
