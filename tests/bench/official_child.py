"""One side of `official.py`, by a Python that needs only torch with numpy: `official_child.py
THREADS cpu|cuda`.

It prints what torch it has, the names of the operations by group, and then a line of JSON for each
request on standard input: `NAME` and seconds to measure, with a tab between. An operation that
raises is a line as well.
"""

import json
import math
import resource
import sys
import time

started = time.perf_counter()
import torch  # noqa: E402

IMPORT_S = time.perf_counter() - started
from official_operations import ON_CARD, ON_PROCESSOR  # noqa: E402

BLOCK_S = 0.02  # of the calls between two readings of the clock


def report(**row):
    print(json.dumps(row), flush=True)


def resident():
    """Its highest value so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fastest(call, wait, limit_s):
    """(wall seconds, CPU seconds of all threads) of a call: each the least of all blocks of calls.

    Other work on the machine makes a block slower, never faster.
    """
    wall, cpu, calls = math.inf, math.inf, 1
    end = time.perf_counter() + limit_s
    call()
    while time.perf_counter() < end or math.isinf(wall):
        wait()
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(calls):
            call()
        wait()
        wall = min(wall, (time.perf_counter() - began) / calls)
        cpu = min(cpu, (time.process_time() - cpu_began) / calls)
        calls = max(1, int(BLOCK_S / wall))
    return wall, cpu


def operations(groups):
    """(name -> function that prepares its call, group -> names)."""
    prepare, names, errors = {}, {}, {}
    for group, makers in groups.items():
        for maker in makers:
            try:
                for name, function in maker():
                    prepare[name] = function
                    names.setdefault(group, []).append(name)
            except Exception as error:  # what this release lacks is no operation of it
                errors[group] = f"{type(error).__name__}: {error}"[:300]
    return prepare, names, errors


def main():
    threads, card = int(sys.argv[1]), sys.argv[2] == "cuda"
    torch.set_num_threads(threads)
    device = (
        torch.cuda.get_device_name()
        if card
        else f"CPU, kernels for {torch.backends.cpu.get_cpu_capability()}"
    )
    memory = {"process after import": resident()}
    prepare, groups, errors = operations(ON_CARD if card else ON_PROCESSOR)
    report(
        version=torch.__version__, device=device, groups=groups, errors=errors, import_s=IMPORT_S
    )
    name, call = "", None
    for line in sys.stdin:
        wanted, _, seconds = line.rstrip("\n").partition("\t")
        try:
            if wanted != name:
                name, call = wanted, None  # what the last one held goes first
                torch.manual_seed(0)
                torch.backends.cuda.matmul.allow_tf32 = "TF32" in name
                torch.backends.cudnn.allow_tf32 = "TF32" in name
                call = prepare[name]()
            wait = torch.cuda.synchronize if card else int
            wall, cpu = fastest(call, wait, float(seconds))
            report(wall=wall, cpu=cpu)
        except Exception as error:
            name = ""
            report(error=f"{type(error).__name__}: {error}"[:300])
    if card:
        memory["card, allocated"] = torch.cuda.max_memory_allocated()
        memory["card, reserved"] = torch.cuda.max_memory_reserved()
    memory["process at its end"] = resident()
    report(memory=memory)


if __name__ == "__main__":
    main()
