"""The operations of `official.py` by a Python that needs only torch with numpy: `official_child.py
THREADS cpu|cuda`.

A line of JSON for each result, at once: a crash or a hang loses what comes after it, nothing
before. An operation that raises is a line as well.
"""

import json
import math
import operator
import resource
import sys
import time
from functools import partial

started = time.perf_counter()
import torch  # noqa: E402

IMPORT = time.perf_counter() - started
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402
from torch.utils.benchmark import Timer  # noqa: E402

LIMIT, FUZZED_LIMIT, BLOCK = (
    0.3,
    0.1,
    0.02,
)  # seconds of an operation, of a fuzzed one, of the calls between two times
CARD_TYPES = {
    "float32": torch.float32,
    "TF32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# The seeds give 8 thousand to 3.7 million elements: contiguous, with steps, permuted, broadcast.
UNARY, UNARY_SEEDS = (
    "abs exp log sqrt rsqrt sin tanh sigmoid erf square median sum",
    (2, 3, 4, 7, 10, 13),
)
BINARY, BINARY_SEEDS = "add mul div maximum atan2 pow", (2, 4, 9, 11, 12, 13)
SPECTRAL, SPECTRAL_SEEDS = "fft.fftn fft.rfftn", (0, 2, 3)


def report(**row):
    print(json.dumps(row), flush=True)


def resident():
    """Its highest value so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fastest(call, threads, limit):
    """Seconds of a call, of blocks of calls; Timer waits for the card before and after a block."""
    timer = Timer("call()", globals={"call": call}, num_threads=threads)
    best, calls, end = math.inf, 1, time.perf_counter() + limit
    while time.perf_counter() < end:
        best = min(best, timer.timeit(calls).mean)
        calls = max(1, int(BLOCK / best))
    return best


def measure(operations, threads, limit=LIMIT):
    try:
        for name, prepare in operations:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "TF32" in name
            try:
                report(name=name, seconds=fastest(prepare(), threads, limit))
            except Exception as error:
                report(name=name, error=f"{type(error).__name__}: {error}"[:300])
    except Exception as error:
        report(name=operations.__name__, error=f"{type(error).__name__}: {error}"[:300])


def forward(function, *given):
    def call():
        with torch.no_grad():
            function(*given)

    return call


def training(model, loss, *given):
    def call():
        model.zero_grad()
        loss(model(*given)).backward()

    return call


def convolution(wide, narrow, size, stride=1):
    return nn.Conv2d(wide, narrow, size, stride, size // 2, bias=False), nn.BatchNorm2d(narrow)


def block(wide, narrow, out, stride=1):
    first, second = convolution(wide, narrow, 1), convolution(narrow, narrow, 3, stride)
    return nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *convolution(narrow, out, 1))


def resnet_like():
    blocks = block(256, 64, 256), block(256, 128, 512, 2), block(512, 256, 1024, 2)
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000)
    return nn.Sequential(nn.Conv2d(3, 256, 7, 4, 3), *blocks, *end)


class Bottleneck(nn.Module):
    def __init__(self, wide, narrow, stride):
        super().__init__()
        out = 4 * narrow
        self.body = block(wide, narrow, out, stride)
        self.skip = (
            nn.Identity() if wide == out else nn.Sequential(*convolution(wide, out, 1, stride))
        )

    def forward(self, planes):
        return torch.relu(self.body(planes) + self.skip(planes))


def resnet50():
    layers, wide = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for narrow, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(wide, narrow, stride if number == 0 else 1))
            wide = 4 * narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))


def encoder(width, heads):
    return nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)


def on_processor(suffix, dtype):
    def data(*size):
        return torch.randn(size, dtype=dtype)

    images, labels, words, matrix = (
        data(4, 3, 224, 224),
        torch.arange(4),
        data(4, 128, 768),
        data(1024, 1024),
    )
    net, layer = resnet_like().to(dtype), encoder(768, 12).to(dtype)
    lstm, conv = (
        nn.LSTM(512, 512, 2, batch_first=True).to(dtype),
        nn.Conv2d(256, 256, 3, padding=1).to(dtype),
    )
    for name, prepare in {
        "ResNet-like forward": lambda: forward(net, images),
        "ResNet-like training step": lambda: training(
            net, lambda out: cross_entropy(out, labels), images
        ),
        "transformer layer": lambda: forward(layer, words),
        "transformer layer training step": lambda: training(layer, torch.sum, words),
        "LSTM": lambda: forward(lstm, data(8, 32, 512)),
        "convolution 3x3": lambda: forward(conv, data(4, 256, 28, 28)),
        "matmul 1024": lambda: forward(torch.matmul, matrix, matrix),
        "exp 1 M": lambda: forward(torch.exp, data(1 << 20)),
        "softmax": lambda: forward(torch.softmax, matrix, 1),
    }.items():
        yield name + suffix, prepare


def on_processor_alone():
    """In float32 or int8 alone; int8 by oneDNN, which both wheels have."""
    torch.backends.quantized.engine = "onednn"
    quantized = torch.ao.nn.quantized
    perceptron = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    dynamic, matrix = torch.ao.quantization.quantize_dynamic, torch.randn(1024, 1024)

    def whole(*size):
        return torch.quantize_per_tensor(torch.randn(size), 0.05, 64, torch.quint8)

    yield "int8 perceptron", lambda: forward(dynamic(perceptron, {nn.Linear}), matrix[:64])
    lstm = nn.LSTM(512, 512, 2, batch_first=True)
    yield "int8 LSTM", lambda: forward(dynamic(lstm, {nn.LSTM}), torch.randn(8, 32, 512))
    yield (
        "int8 convolution 3x3",
        lambda: forward(quantized.Conv2d(256, 256, 3, padding=1), whole(4, 256, 28, 28)),
    )
    yield "int8 linear", lambda: forward(quantized.Linear(1024, 1024), whole(512, 1024))
    yield "sort 1 M", lambda: forward(torch.sort, torch.randn(1 << 20))
    yield "SVD 256", lambda: forward(torch.linalg.svd, matrix[:256, :256])
    yield "inverse 512", lambda: forward(torch.linalg.inv, matrix[:512, :512])
    yield "FFT 1 M", lambda: forward(torch.fft.rfft, torch.randn(1 << 20))


def fuzzed():
    """Operators on the tensors that torch's own fuzzers draw; a seed gives every torch the same."""
    from torch.utils.benchmark.op_fuzzers import binary, spectral, unary

    for fuzzer, names, seeds in (
        (unary.UnaryOpFuzzer, UNARY, UNARY_SEEDS),
        (binary.BinaryOpFuzzer, BINARY, BINARY_SEEDS),
        (spectral.SpectralOpFuzzer, SPECTRAL, SPECTRAL_SEEDS),
    ):
        for seed in seeds:
            torch.manual_seed(seed)
            tensors = [*next(fuzzer(seed=seed, dtype=torch.float32).take(1))[0].values()]
            shapes = " ".join("x".join(map(str, each.shape)) for each in tensors)
            steps = "" if all(each.is_contiguous() for each in tensors) else " strided"
            for name in names.split():
                call = partial(operator.attrgetter(name)(torch), *tensors)
                yield f"fuzzed {name} {shapes}{steps}", lambda call=call: call


def attention(*given):
    return scaled_dot_product_attention(*given, is_causal=True)


def attention_training(*given):
    torch.autograd.grad(attention(*given), given, given[0])


def on_card(kind, dtype, device="cuda"):
    def data(*size):
        return torch.randn(size, device=device, dtype=dtype)

    def model(module):
        return module.to(device, dtype)

    def three(head):
        return [data(8, 1024 // head, 2048, head).requires_grad_() for _ in "qkv"]

    def loss(out):
        return cross_entropy(out, torch.arange(32, device=device))

    def lstm():
        return model(nn.LSTM(1024, 1024, 2, batch_first=True))

    for name, prepare in {
        "matmul 4096": lambda: forward(torch.matmul, data(4096, 4096), data(4096, 4096)),
        "convolution 3x3": lambda: forward(
            model(nn.Conv2d(256, 256, 3, padding=1)), data(32, 256, 56, 56)
        ),
        "ResNet-50": lambda: forward(model(resnet50()).eval(), data(32, 3, 224, 224)),
        "ResNet-50 training step": lambda: training(model(resnet50()), loss, data(32, 3, 224, 224)),
        "transformer layer": lambda: forward(model(encoder(1024, 16)).eval(), data(8, 512, 1024)),
        "transformer layer training step": lambda: training(
            model(encoder(1024, 16)), torch.sum, data(8, 512, 1024)
        ),
        "LSTM": lambda: forward(lstm().eval(), data(64, 128, 1024)),
        "LSTM training step": lambda: training(
            lstm(), lambda out: out[0].sum(), data(64, 128, 1024)
        ),
        "SDPA, heads of 64": lambda: forward(attention, *three(64)),
        "SDPA, heads of 64, training step": lambda: partial(attention_training, *three(64)),
        "SDPA, heads of 128": lambda: forward(attention, *three(128)),
        "SDPA, heads of 128, training step": lambda: partial(attention_training, *three(128)),
        "softmax 8192x4096": lambda: forward(torch.softmax, data(8192, 4096), 1),
    }.items():
        yield f"{name} {kind}", prepare


def on_card_alone(device="cuda"):
    data = partial(torch.randn, device=device)
    yield "exp 16 M", lambda: forward(torch.exp, data(1 << 24))
    yield "sort 16 M", lambda: forward(torch.sort, data(1 << 24))
    yield "FFT 16 M", lambda: forward(torch.fft.rfft, data(1 << 24))
    yield "FFT 4096x4096", lambda: forward(torch.fft.fft2, data(4096, 4096, dtype=torch.complex64))
    yield "SVD 512", lambda: forward(torch.linalg.svd, data(512, 512))
    yield "inverse 2048", lambda: forward(torch.linalg.inv, data(2048, 2048))


def main():
    threads, card = int(sys.argv[1]), sys.argv[2] == "cuda"
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    device = (
        torch.cuda.get_device_name()
        if card
        else f"CPU, kernels for {torch.backends.cpu.get_cpu_capability()}"
    )
    report(version=torch.__version__, device=device)
    report(name="import", seconds=IMPORT)
    report(memory="process after import", bytes=resident())
    if card:
        for kind, dtype in CARD_TYPES.items():
            measure(on_card(kind, dtype), threads)
        measure(on_card_alone(), threads)
        report(memory="card, allocated", bytes=torch.cuda.max_memory_allocated())
        report(memory="card, reserved", bytes=torch.cuda.max_memory_reserved())
    else:
        for suffix, dtype in (("", torch.float32), (" bfloat16", torch.bfloat16)):
            measure(on_processor(suffix, dtype), threads)
        measure(on_processor_alone(), threads)
        measure(fuzzed(), threads, FUZZED_LIMIT)
    report(memory="process at its end", bytes=resident())


if __name__ == "__main__":
    main()
