"""What the compiler cache adds to a compile that it does not have: `python tests/bench/cache_misses.py IMAGE VOLUME`.

IMAGE is the toolchain image of a PyTorch build, VOLUME its build tree (`farm-tree-…`), configured and with its
generated sources; it is read only. Some objects, evenly spread over the build, are compiled without a cache, with an
empty one, with an empty one in ccache's depend mode, and from the cache, in turns. Prints CPU seconds (user and system)
of each, and their ratio weighted by the whole build's numbers of objects. Needs a Docker engine.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cache_subset import choose, commands, group  # noqa: E402

ENVIRONMENT = {"CCACHE_NOHASHDIR": "1", "CCACHE_COMPILERCHECK": "content"}  # as build.sh
WAYS = ("none", "miss", "depend", "hit")


def compile_once(command: list[str], folder: Path, cache: Path | None, depend: bool) -> float:
    """CPU seconds of one compile and all that it starts."""
    environ = {**os.environ, **ENVIRONMENT, **({"CCACHE_DEPEND": "1"} if depend else {})}
    if cache:
        environ["CCACHE_DIR"] = str(cache)
        command = ["ccache", *command]
    process = os.posix_spawnp(command[0], command, environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", 1, 0)])
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"exit status {status}: {shlex.join(command)}")
    return used.ru_utime + used.ru_stime


def inside(build: Path, cpp: int, cuda: int) -> None:
    known = commands(build.parent)
    chosen, whole = choose(known, cpp, cuda)
    os.chdir(build)
    for number, output in enumerate(chosen):
        with tempfile.TemporaryDirectory() as name:
            where = Path(name)
            text = re.sub(r" -o \S+", f" -o {where}/object.o", known[output])
            command = shlex.split(re.sub(r" -MF \S+", f" -MF {where}/object.d", text))
            command = command[command[0].endswith("ccache") :]
            compile_once(command, build, None, False)  # the first reads the headers from the disk
            seconds = {}
            for turn in range(3):  # each way is first, second and third as often
                way = WAYS[(number + turn) % 3]
                cache = None if way == "none" else where / way
                seconds[way] = compile_once(command, build, cache, way == "depend")
            seconds["hit"] = compile_once(command, build, where / "miss", False)
            print(json.dumps({"group": group(known[output]), "object": output, **seconds}), flush=True)
    print(json.dumps({"whole": whole}), flush=True)


def report(rows: list[dict[str, object]], whole: dict[str, int]) -> None:
    print(f"{'objects':24}{'of':>6}" + "".join(f"{way:>10}" for way in WAYS) + "   ratio of miss, depend, hit to none")
    weighted = dict.fromkeys(WAYS, 0.0)
    for name, count in whole.items():
        mine = [row for row in rows if row["group"] == name]
        sums = {way: sum(float(str(row[way])) for row in mine) for way in WAYS}
        for way in WAYS:
            weighted[way] += sums[way] * count / len(mine)
        line(f"{name}: {len(mine)}", count, sums)
    line("whole build, projected", sum(whole.values()), weighted)


def line(name: str, count: int, sums: dict[str, float]) -> None:
    ratios = "  ".join(f"{sums[way] / sums['none']:.3f}" for way in WAYS[1:])
    print(f"{name:24}{count:6}" + "".join(f"{sums[way]:10.1f}" for way in WAYS) + f"   {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("volume")
    parser.add_argument("--cpp", type=int, default=32, help="C++ objects (default: 32)")
    parser.add_argument("--cuda", type=int, default=10, help="CUDA objects (default: 10)")
    args = parser.parse_args()
    if args.image == "inside":
        inside(Path(args.volume), args.cpp, args.cuda)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cache_misses.py", "cache_subset.py"):
            shutil.copy(HERE / name, folder)
        volumes = ["-v", f"{args.volume}:/farm/src:ro", "-v", f"{folder}:/bench:ro"]
        command = ["docker", "run", "--rm", "--network", "none", *volumes]
        command += [args.image, "python3", "/bench/cache_misses.py", "inside", "/farm/src/build"]
        command += ["--cpp", str(args.cpp), "--cuda", str(args.cuda)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            found = []
            for text in process.stdout or ():
                found.append(json.loads(text))
                print(text, end="", file=sys.stderr)
    if process.returncode:
        raise SystemExit(process.returncode)
    report(found[:-1], found[-1]["whole"])


if __name__ == "__main__":
    main()
