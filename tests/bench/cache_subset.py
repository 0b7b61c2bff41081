"""Compiles a fixed subset of PyTorch for several variants through one compiler cache; runs in the toolchain image.

Usage: cache_subset.py SETTINGS.json; cache_matrix.py writes it and reads out/results.json. Each variant's tree is moved
to the same path before its objects are compiled, as each build of the farm sees the same paths.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

FARM = Path("/farm")
GENERATED = (
    "ATEN_CPU_FILES_GEN_TARGET",
    "ATEN_CUDA_FILES_GEN_TARGET",
    "generate-torch-sources",
    "third_party/onnx/onnx/onnx_onnx_torch-ml.pb.h",
    "third_party/onnx/onnx/onnx-operators_onnx_torch-ml.pb.h",
    "third_party/onnx/onnx/onnx-data_onnx_torch.pb.h",
    "caffe2/proto/torch.pb.h",
    "caffe2/proto/caffe2.pb.h",
)
PYTHON_INCLUDE = "/usr/include/python3.11"
# nvcc writes its process id into the name of a temporary file and into those of internal symbols: two compiles differ
# in these, if in nothing else.
PROCESS_ID = re.compile(rb"(?<=tmpxft_)[0-9a-f]{8}_[0-9a-f]{8}|(?<=_cu_[0-9a-f]{8})_[0-9]+")
SHARE = {"host": 12, "binding": 2, "cuda host": 2}  # of 16 C++ objects, as in the whole build (1050, 131, 187)


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def configure(name, first):
    """The tree of one configuration, configured and with its generated sources, at /farm/src."""
    source = FARM / "src"
    job = FARM / "job"
    job.unlink(missing_ok=True)
    job.symlink_to(FARM / "in" / name)
    script = (job / "build.sh").read_text().partition('echo "farm: step build"')[0]
    script += "\npython3 setup.py build --cmake-only\n"
    if first:
        script += "ninja -C build " + " ".join(GENERATED) + "\n"
    else:
        shutil.copytree(FARM / "trees" / "first", source, symlinks=True)
        (source / "build/CMakeCache.txt").unlink()
        shutil.rmtree(source / "build/CMakeFiles")
    with (FARM / "out" / f"configure-{name}.log").open("w") as log:
        subprocess.run(["bash", "-c", script], check=True, stdout=log, stderr=log)


def group(command):
    if " -gencode " in command:
        return "device"
    if PYTHON_INCLUDE in command:
        return "binding"
    return "cuda host" if "cuda.dir/" in command else "host"


def commands(tree):
    """Output -> its compile command."""
    found = {}
    for entry in json.loads((tree / "build/compile_commands.json").read_text()):
        output = re.search(r" -o (\S+)", entry["command"])
        if output and not entry["file"].endswith(".c"):
            found[output[1]] = entry["command"]
    return found


def spread(names, count):
    """`count` of them, evenly spread over the sorted list: the same ones each time."""
    names = sorted(names)
    return [names[int((i + 0.5) * len(names) / count)] for i in range(min(count, len(names)))]


def choose(known, cpp, cuda):
    groups = {}
    for output, command in known.items():
        groups.setdefault(group(command), []).append(output)
    counts = {name: max(1, round(cpp * share / 16)) for name, share in SHARE.items()} | {"device": cuda}
    chosen = []
    for name, count in counts.items():
        found = spread(groups[name], count)
        chosen += [((i + 0.5) / len(found), output) for i, output in enumerate(found)]
    # The groups take turns, so that an early end has something of each.
    return [output for _, output in sorted(chosen)], {name: len(outputs) for name, outputs in groups.items()}


def cpu_seconds():
    """Of this container so far, user and system: a cache may compile in a server, which is no child of ours."""
    unified = Path("/sys/fs/cgroup/cpu.stat")
    if unified.exists():
        return int(unified.read_text().split()[1]) / 1e6
    return int(Path("/sys/fs/cgroup/cpuacct/cpuacct.usage").read_text()) / 1e9


def compile_one(command, folder, environ):
    """CPU seconds."""
    before = cpu_seconds()
    subprocess.run(command, cwd=folder, check=True, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return cpu_seconds() - before


class Ccache:
    def __init__(self, environ):
        self.environ = environ
        self.log = FARM / "stats.log"
        environ["CCACHE_STATSLOG"] = str(self.log)

    def command(self, command):
        self.log.write_text("")
        return ["ccache", *command]

    def counters(self):
        """What it counted for the last command, and whether the object came from the cache."""
        text = self.log.read_text()
        return text.split("\n")[1:-1], "cache_hit" in text.replace("remote_storage", "")


class Sccache:
    PATH = FARM / "in" / "sccache"

    def __init__(self, environ):
        self.environ = environ
        subprocess.run([self.PATH, "--start-server"], env=environ, check=True)

    def command(self, command):
        subprocess.run([self.PATH, "--zero-stats"], env=self.environ, check=True, stdout=subprocess.DEVNULL)
        return [str(self.PATH), *command]

    def counters(self):
        """As above. nvcc's steps are cached one by one: a hit is a command of which no step was compiled."""
        show = [self.PATH, "--show-stats", "--stats-format", "json"]
        stats = json.loads(subprocess.run(show, env=self.environ, check=True, capture_output=True, text=True).stdout)
        found = {name: sum(stats["stats"][name]["counts"].values()) for name in ("cache_hits", "cache_misses")}
        found["not_cacheable"] = sum(stats["stats"]["not_cached"].values()) + stats["stats"]["requests_not_cacheable"]
        counters = [f"{name}={value}" for name, value in found.items()]
        return counters, found["cache_hits"] > 0 == found["cache_misses"] + found["not_cacheable"]


def digest(path):
    return hashlib.sha256(PROCESS_ID.sub(b"", path.read_bytes())).hexdigest()


def main():
    settings = json.loads(Path(sys.argv[1]).read_text())
    for name in ("out", "trees", "ccache"):
        (FARM / name).mkdir(exist_ok=True)
    environ = {**os.environ, **settings["environment"]}
    cache = Sccache(environ) if Sccache.PATH.exists() else Ccache(environ)
    source, build = FARM / "src", FARM / "src/build"
    names = list(dict.fromkeys(variant["configuration"] for variant in settings["variants"]))
    for number, name in enumerate(names):
        if (FARM / "trees" / name).is_dir():  # of a run before, in the same container
            continue
        say(f"configure {name}")
        configure(name, number == 0)
        if number == 0:
            shutil.copytree(source, FARM / "trees" / "first", symlinks=True)
        source.rename(FARM / "trees" / name)
    shutil.rmtree(FARM / "trees" / "first", ignore_errors=True)
    known = {name: commands(FARM / "trees" / name) for name in names}
    chosen, whole = choose(known[names[0]], settings["cpp"], settings["cuda"])
    number, of = settings["part"]
    chosen = chosen[number::of]
    say(f"{len(chosen)} objects of {whole}")
    rows, proofs = [], []
    deadline = time.monotonic() + settings["minutes"] * 60
    ended = "complete"
    for position, output in enumerate(chosen):  # an object for all variants, so that an early end leaves whole objects
        if time.monotonic() > deadline:
            ended = f"time was up after {position} of {len(chosen)} objects"
            break
        for variant in settings["variants"]:
            tree = FARM / "trees" / variant["configuration"]
            text = known[variant["configuration"]].get(output)
            if text is None:
                if "without" in variant:  # it has no such object
                    continue
                sys.exit(f"{variant['name']} does not compile {output}")
            text = text.replace(PYTHON_INCLUDE, variant["python_include"])
            command = shlex.split(text)
            tree.rename(source)
            try:
                (build / output).parent.mkdir(parents=True, exist_ok=True)
                (build / output).unlink(missing_ok=True)
                seconds = compile_one(cache.command(command), build, environ)
                sha256 = digest(build / output)
                counters, hit = cache.counters()
                result = "hit" if hit else "miss"
                rows.append({
                    "variant": variant["name"], "object": output, "result": result,
                    "group": group(known[names[0]][output]),
                    "counters": counters, "seconds": round(seconds, 3), "sha256": sha256,
                })  # fmt: skip
                wanted = len(proofs) < settings["proofs"] or position % settings["proof_every"] == 0
                if result == "hit" and wanted and not any(p["object"] == output for p in proofs):
                    (build / output).unlink()
                    compile_one(command, build, environ)
                    again = digest(build / output)
                    proofs.append({"variant": variant["name"], "object": output, "same": again == sha256})
            finally:
                source.rename(tree)
        last = [row for row in rows if row["object"] == output]
        done = f"{sum(r['result'] == 'miss' for r in last)} of {len(last)} compiled"
        say(f"{position + 1}/{len(chosen)} {last[0]['group']} {output}: {done}, {last[0]['seconds']:.1f} s first")
        results = {"ended": ended, "chosen": len(chosen), "whole": whole, "rows": rows, "proofs": proofs}
        (FARM / "out" / "results.json").write_text(json.dumps({**results, "ended": "running"}, indent=1))
    results["ended"] = ended
    (FARM / "out" / "results.json").write_text(json.dumps(results, indent=1))
    say(ended)


if __name__ == "__main__":
    main()
