"""nvcc.exe under Wine: clang's CUDA front end, NVIDIA's ptxas.exe and fatbinary.exe. Device code
alone (`-fatbin`).

settings.json beside it: `release` (what --version answers), and the paths of the tools.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text())


def run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"nvcc: {command[0]} ended with {done.returncode}")


def ptx(source: str, sm: str, target: Path) -> None:
    """PTX that CUDA 11.8 reads: clang writes a newer one, whose parameters say more."""
    run(*SETTINGS["clang"], f"--cuda-gpu-arch=sm_{sm}", "-S", source, "-o", str(target))
    text = re.sub(r"^\.version .*", ".version 7.8", target.read_text(), flags=re.MULTILINE)
    target.write_text(re.sub(r" \.ptr( \.\w+)? \.align \d+", "", text))


def main(arguments: list[str]) -> None:
    if "--version" in arguments:
        print(f"Cuda compilation tools, release {SETTINGS['release']}, V{SETTINGS['release']}.0")
        return
    if "-fatbin" not in arguments:
        sys.exit("nvcc: this one makes fat binaries alone")
    target = Path(arguments[arguments.index("-o") + 1])
    [source] = [word for word in arguments if word.endswith(".cu")]
    images = []
    for flag in arguments:
        if not (
            match := re.fullmatch(r"-gencode=arch=compute_(\d+),code=(sm|compute)_(\d+)", flag)
        ):
            continue
        sm, kind = match[1], match[2]
        assembly, cubin = target.with_suffix(f".{sm}.ptx"), target.with_suffix(f".{sm}.cubin")
        ptx(source, sm, assembly)
        run(SETTINGS["ptxas"], f"-arch=sm_{sm}", str(assembly), "-o", str(cubin))
        image = ("elf", cubin) if kind == "sm" else ("ptx", assembly)
        images.append(f"--image3=kind={image[0]},sm={sm},file={image[1]}")
    run(SETTINGS["fatbinary"], "--64", f"--create={target}", *images)


main(sys.argv[1:])
