"""A wheel beside the official one: the same operations by turns in one run, and the ratio of their times.

    python tests/bench/official.py --ours ENV/bin/python --official ENV/bin/python --threads 1 16 [--json FILE]

Both environments have a torch; that of the official wheel comes from the Python index. Of the rounds the fastest
counts: other work on the machine makes an operation slower, never faster.
"""

import argparse
import json
import math
import subprocess
from pathlib import Path

CHILD = """
import json, sys, time
started = time.perf_counter()
import torch
results = {"import": time.perf_counter() - started}
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
nn = torch.nn
def block(wide, narrow, stride=1):
    return nn.Sequential(
        nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(),
        nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(),
        nn.Conv2d(narrow, wide * stride, 1, bias=False), nn.BatchNorm2d(wide * stride))
net = nn.Sequential(
    nn.Conv2d(3, 256, 7, 4, 3), block(256, 64), block(256, 128, 2), block(512, 256, 2),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))
images, labels = torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))
a, b, z = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.randn(1 << 20)
layer, words = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True), torch.randn(4, 128, 768)
half = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True).bfloat16()
lstm, steps = nn.LSTM(512, 512, 2, batch_first=True), torch.randn(8, 32, 512)
conv, planes = nn.Conv2d(256, 256, 3, padding=1), torch.randn(4, 256, 28, 28)
perceptron = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
torch.backends.quantized.engine = "onednn"
whole = torch.ao.quantization.quantize_dynamic(perceptron, {nn.Linear})
def train(model, given, loss):
    model.zero_grad()
    loss(model(given)).backward()
def without_gradients(call):
    with torch.no_grad():
        call()
forward = {
    "ResNet-like forward": lambda: net(images), "transformer layer": lambda: layer(words),
    "transformer layer bfloat16": lambda: half(words.bfloat16()), "LSTM": lambda: lstm(steps),
    "convolution 3x3": lambda: conv(planes), "matmul 1024": lambda: a @ b,
    "matmul 1024 bfloat16": lambda: a.bfloat16() @ b.bfloat16(), "int8 perceptron": lambda: whole(a[:64]),
    "exp 1 M": lambda: z.exp(), "softmax": lambda: z.view(1024, 1024).softmax(1), "sort 1 M": lambda: z.sort(),
    "SVD 256": lambda: torch.linalg.svd(a[:256, :256]), "inverse 512": lambda: torch.linalg.inv(a[:512, :512]),
    "FFT 1 M": lambda: torch.fft.rfft(z),
}
calls = {name: (lambda call=call: without_gradients(call)) for name, call in forward.items()}
calls["ResNet-like training step"] = lambda: train(net, images, lambda out: nn.functional.cross_entropy(out, labels))
calls["transformer layer training step"] = lambda: train(layer, words, torch.sum)
for name, call in calls.items():
    call()
    times = []
    while len(times) < 5 and sum(times) < 3:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    results[name] = min(times)
print(json.dumps({"version": torch.__version__, "seconds": results}))
"""


def once(python: Path, threads: int) -> dict[str, object]:
    done = subprocess.run([python, "-c", CHILD, str(threads)], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def fastest(runs: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    return {name: min(run["seconds"][name] for run in runs) for name in runs[0]["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ours", type=Path, required=True, help="the Python that has the wheel")
    parser.add_argument("--official", type=Path, required=True, help="the Python that has the official wheel")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the times to this file")
    args = parser.parse_args()
    kept = {}
    for threads in args.threads:
        runs = {name: [] for name in ("ours", "official")}
        for _ in range(args.rounds):
            for name, python in (("ours", args.ours), ("official", args.official)):
                runs[name].append(once(python, threads))
        ours, official = fastest(runs["ours"]), fastest(runs["official"])
        print(f"{threads} threads: ours {runs['ours'][0]['version']}, official {runs['official'][0]['version']}")
        print(f"{'operation':34} {'ours ms':>9} {'official ms':>11} {'speed':>6}")
        for name, seconds in ours.items():
            print(f"{name:34} {seconds * 1e3:9.2f} {official[name] * 1e3:11.2f} {official[name] / seconds:6.2f}")
        mean = math.exp(sum(math.log(official[name] / ours[name]) for name in ours) / len(ours))
        print(f"geometric mean of the speeds: {mean:.2f}\n")
        kept[str(threads)] = {"ours": ours, "official": official, "geometric mean": round(mean, 3)}
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
