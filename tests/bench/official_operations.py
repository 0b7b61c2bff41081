"""The operations of `official.py`, by group: (name, function that prepares the call).

They need only torch with numpy. Preparing draws the data and builds the model; the call that it
returns is what is timed.
"""

import operator
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

CARD_TYPES = {
    "float32": torch.float32,
    "TF32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# The seeds give 8 thousand to 3.7 million elements: contiguous, with steps, permuted, broadcast.
UNARY = "abs exp log sqrt rsqrt sin tanh sigmoid erf square median sum"
UNARY_SEEDS = (2, 3, 4, 7, 10, 13)
BINARY = "add mul div maximum atan2 pow"
BINARY_SEEDS = (2, 4, 9, 11, 12, 13)
SPECTRAL = "fft.fftn fft.rfftn"
SPECTRAL_SEEDS = (0, 2, 3)
bfloat16, float16, float32, float64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
random = torch.randn


def without_gradient(function, *operands, **options):
    def call():
        with torch.no_grad():
            function(*operands, **options)

    return call


def training(model, loss, *operands):
    def call():
        model.zero_grad()
        loss(model(*operands)).backward()

    return call


def training_with_adam(model, loss, *operands):
    optimizer = torch.optim.Adam(model.parameters())
    step = training(model, loss, *operands)

    def call():
        step()
        optimizer.step()

    return call


def convolution(wide, narrow, size, stride=1):
    return nn.Conv2d(wide, narrow, size, stride, size // 2, bias=False), nn.BatchNorm2d(narrow)


def block(wide, narrow, out, stride=1):
    first = convolution(wide, narrow, 1)
    second = convolution(narrow, narrow, 3, stride)
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


# ---- on the processor ----


def element_wise():
    count = 1 << 20
    for name, function in {
        "exp": torch.exp,
        "log": torch.log,
        "sin": torch.sin,
        "tanh": torch.tanh,
        "erf": torch.erf,
        "GELU": functional.gelu,
        "SiLU": functional.silu,
    }.items():
        yield f"{name} 1 M", lambda function=function: without_gradient(function, random(count))
    for name, function in {"exp": torch.exp, "SiLU": functional.silu}.items():
        yield (
            f"{name} 1 M bfloat16",
            lambda function=function: without_gradient(function, random(count, dtype=bfloat16)),
        )
    yield "add 1 M", lambda: without_gradient(torch.add, random(count), random(count))
    yield (
        "add, broadcast",
        lambda: without_gradient(torch.add, random(1024, 1, 64), random(1, 64, 64)),
    )
    yield "pow 1 M", lambda: without_gradient(torch.pow, random(count).abs(), random(count))
    yield "1 M float32 to bfloat16", lambda: without_gradient(random(count).to, bfloat16)
    yield (
        "where 1 M",
        lambda: without_gradient(torch.where, random(count) > 0, random(count), random(count)),
    )


def reductions():
    matrix = partial(random, 1024, 1024)
    yield "sum of 4 M", lambda: without_gradient(torch.sum, random(1 << 22))
    yield "sum by columns", lambda: without_gradient(torch.sum, matrix(), 0)
    yield "sum of 4 M bfloat16", lambda: without_gradient(torch.sum, random(1 << 22).bfloat16())
    yield "argmax by rows", lambda: without_gradient(torch.argmax, matrix(), 1)
    yield "cumsum by rows", lambda: without_gradient(torch.cumsum, matrix(), 1)
    yield "softmax", lambda: without_gradient(torch.softmax, matrix(), 1)
    yield "softmax bfloat16", lambda: without_gradient(torch.softmax, matrix().bfloat16(), 1)
    yield "layer norm", lambda: without_gradient(functional.layer_norm, matrix(), (1024,))
    yield "batch norm", lambda: without_gradient(nn.BatchNorm2d(64), random(8, 64, 56, 56))
    yield "topk of 100", lambda: without_gradient(torch.topk, matrix(), 100)
    yield "cdist", lambda: without_gradient(torch.cdist, random(1000, 128), random(1000, 128), 1.0)
    yield (
        "cdist by products",
        lambda: without_gradient(torch.cdist, random(1000, 128), random(1000, 128)),
    )


def products():
    def matmul(size, dtype):
        return without_gradient(torch.matmul, *(random(size, size).to(dtype) for _ in "ab"))

    for size, dtype in ((1024, float32), (1024, bfloat16), (512, float16), (1024, float64)):
        yield (
            f"matmul {size} {str(dtype).removeprefix('torch.')}",
            partial(matmul, size, dtype),
        )
    for dtype in (float32, bfloat16):
        yield (
            f"linear of one row {str(dtype).removeprefix('torch.')}",
            lambda dtype=dtype: without_gradient(
                nn.Linear(2048, 2048).to(dtype), random(1, 2048, dtype=dtype)
            ),
        )
    yield "bmm", lambda: without_gradient(torch.bmm, random(64, 128, 64), random(64, 64, 128))
    yield "matrix by vector", lambda: without_gradient(torch.mv, random(2048, 2048), random(2048))


def convolutions():
    images = partial(random, 4, 3, 224, 224)
    planes = partial(random, 4, 256, 28, 28)

    def whole(dtype):
        return without_gradient(resnet_like().to(dtype), images().to(dtype))

    def three_by_three(dtype):
        layer = nn.Conv2d(256, 256, 3, padding=1)
        return without_gradient(layer.to(dtype), planes().to(dtype))

    for suffix, dtype in (("", float32), (" bfloat16", bfloat16)):
        yield f"ResNet-like forward{suffix}", partial(whole, dtype)
        yield f"convolution 3x3{suffix}", partial(three_by_three, dtype)
    yield (
        "transposed convolution",
        lambda: without_gradient(nn.ConvTranspose2d(128, 64, 4, 2, 1), random(4, 128, 28, 28)),
    )
    yield (
        "depthwise convolution",
        lambda: without_gradient(nn.Conv2d(256, 256, 3, padding=1, groups=256), planes()),
    )
    yield "convolution 1D", lambda: without_gradient(nn.Conv1d(64, 128, 9), random(8, 64, 1000))
    yield (
        "convolution 3D",
        lambda: without_gradient(nn.Conv3d(16, 32, 3), random(2, 16, 16, 32, 32)),
    )
    yield "max pool", lambda: without_gradient(functional.max_pool2d, planes(), 2)
    yield (
        "interpolate",
        lambda: without_gradient(
            functional.interpolate, images(), scale_factor=2.0, mode="bilinear"
        ),
    )


def indexing():
    def rows(count, high):
        return torch.randint(high, (count,), generator=torch.Generator().manual_seed(1))

    table = partial(random, 200_000, 128)
    yield (
        "embedding",
        lambda: without_gradient(functional.embedding, rows(4096, 200_000), table()),
    )
    yield (
        "EmbeddingBag, sum",
        lambda: without_gradient(
            nn.EmbeddingBag(200_000, 128, mode="sum"), rows(20_480, 200_000).view(1024, 20)
        ),
    )
    yield (
        "index_select",
        lambda: without_gradient(torch.index_select, table(), 0, rows(4096, 200_000)),
    )
    yield (
        "gather",
        lambda: without_gradient(
            torch.gather, random(1024, 1024), 1, rows(1 << 20, 1024).view(1024, 1024)
        ),
    )
    yield (
        "scatter_add",
        lambda: without_gradient(
            random(1024, 1024).scatter_add,
            0,
            rows(1 << 20, 1024).view(1024, 1024),
            random(1024, 1024),
        ),
    )
    yield (
        "index_add",
        lambda: without_gradient(
            random(2000, 128).index_add, 0, rows(20_000, 2000), random(20_000, 128)
        ),
    )
    yield (
        "masked_select",
        lambda: without_gradient(torch.masked_select, random(1 << 20), random(1 << 20) > 0),
    )
    yield "sort 1 M", lambda: without_gradient(torch.sort, random(1 << 20))
    yield "unique", lambda: without_gradient(torch.unique, rows(1 << 18, 1000))
    yield (
        "concatenation",
        lambda: without_gradient(torch.cat, [random(1024, 256) for _ in range(8)], 1),
    )
    yield "transposed copy", lambda: without_gradient(random(1024, 1024).t().contiguous)


def linear_algebra():
    def definite(size):
        matrix = random(size, size)
        return matrix @ matrix.t() + size * torch.eye(size)

    yield "solve", lambda: without_gradient(torch.linalg.solve, definite(512), random(512, 64))
    yield "Cholesky", lambda: without_gradient(torch.linalg.cholesky, definite(512))
    yield "QR", lambda: without_gradient(torch.linalg.qr, random(512, 256))
    yield "eigenvalues", lambda: without_gradient(torch.linalg.eigvalsh, definite(256))
    yield "SVD 256", lambda: without_gradient(torch.linalg.svd, random(256, 256))
    yield "inverse 512", lambda: without_gradient(torch.linalg.inv, definite(512))
    yield "FFT 1 M", lambda: without_gradient(torch.fft.rfft, random(1 << 20))
    yield "FFT of 64 images", lambda: without_gradient(torch.fft.rfft2, random(64, 128, 128))


def recurrent():
    def layers(kind, dtype=float32):
        model = kind(512, 512, 2, batch_first=True).to(dtype)
        return without_gradient(model, random(8, 32, 512, dtype=dtype))

    yield "LSTM", lambda: layers(nn.LSTM)
    yield "LSTM bfloat16", lambda: layers(nn.LSTM, bfloat16)
    yield "GRU", lambda: layers(nn.GRU)
    yield "RNN", lambda: layers(nn.RNN)


def attentions():
    def causal(dtype):
        q = random(4, 8, 512, 64, dtype=dtype)
        return without_gradient(scaled_dot_product_attention, q, q, q, is_causal=True)

    for name, dtype in (("", float32), (" bfloat16", bfloat16), (" float16", float16)):
        yield f"SDPA, causal{name}", partial(causal, dtype)
    for name, dtype in (("", float32), (" bfloat16", bfloat16)):
        yield (
            f"transformer layer{name}",
            lambda dtype=dtype: without_gradient(
                encoder(768, 12).to(dtype), random(4, 128, 768, dtype=dtype)
            ),
        )
    yield (
        "transformer layer, inference",
        lambda: without_gradient(encoder(768, 12).eval(), random(4, 128, 768)),
    )


def trainings():
    def images(dtype):
        return training(
            resnet_like().to(dtype),
            lambda out: cross_entropy(out, torch.arange(4)),
            random(4, 3, 224, 224).to(dtype),
        )

    def words(dtype):
        return training(encoder(768, 12).to(dtype), torch.sum, random(4, 128, 768).to(dtype))

    for suffix, dtype in (("", float32), (" bfloat16", bfloat16)):
        yield f"ResNet-like training step{suffix}", partial(images, dtype)
        yield f"transformer layer training step{suffix}", partial(words, dtype)
    yield (
        "LSTM training step",
        lambda: training(
            nn.LSTM(256, 256, 2, batch_first=True),
            lambda out: out[0].sum(),
            random(8, 32, 256),
        ),
    )
    yield (
        "perceptron step with Adam",
        lambda: training_with_adam(
            nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)),
            torch.sum,
            random(64, 512),
        ),
    )


def quantized():
    """Whole numbers of 8 bits by oneDNN, which both wheels have."""
    torch.backends.quantized.engine = "onednn"
    modules = torch.ao.nn.quantized
    dynamic = torch.ao.quantization.quantize_dynamic

    def eight_bits(*size):
        return torch.quantize_per_tensor(random(size), 0.05, 64, torch.quint8)

    def perceptron():
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
        return without_gradient(dynamic(model, {nn.Linear}), random(64, 1024))

    yield "int8 perceptron", perceptron
    lstm = partial(nn.LSTM, 512, 512, 2, batch_first=True)
    yield (
        "int8 LSTM",
        lambda: without_gradient(dynamic(lstm(), {nn.LSTM}), random(8, 32, 512)),
    )
    yield (
        "int8 convolution 3x3",
        lambda: without_gradient(
            modules.Conv2d(256, 256, 3, padding=1), eight_bits(4, 256, 28, 28)
        ),
    )
    yield "int8 linear", lambda: without_gradient(modules.Linear(1024, 1024), eight_bits(512, 1024))


def quantized_by_default():
    """By the engine that each wheel takes when the program names none."""
    dynamic = torch.ao.quantization.quantize_dynamic

    def linear():
        engines = torch.backends.quantized.supported_engines
        torch.backends.quantized.engine = "fbgemm" if "fbgemm" in engines else "onednn"
        model = nn.Sequential(nn.Linear(1024, 1024))
        return without_gradient(dynamic(model, {nn.Linear}), random(64, 1024))

    yield "int8 dynamic linear, FBGEMM or oneDNN", linear


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
            drawn = next(fuzzer(seed=seed, dtype=torch.float32).take(1))[0]
            tensors = list(drawn.values())
            shapes = " ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
            steps = "" if all(tensor.is_contiguous() for tensor in tensors) else " strided"
            for name in names.split():
                call = partial(operator.attrgetter(name)(torch), *tensors)
                yield f"fuzzed {name} {shapes}{steps}", lambda call=call: call


ON_PROCESSOR = {
    "element-wise": (element_wise,),
    "reductions": (reductions,),
    "products": (products,),
    "convolutions": (convolutions,),
    "indexing": (indexing,),
    "linear algebra": (linear_algebra,),
    "recurrent": (recurrent,),
    "attention": (attentions,),
    "training": (trainings,),
    "quantized": (quantized, quantized_by_default),
    "fuzzed": (fuzzed,),
}


# ---- on the card ----


def attention(*operands):
    return scaled_dot_product_attention(*operands, is_causal=True)


def attention_training(*operands):
    torch.autograd.grad(attention(*operands), operands, operands[0])


def on_card(kind, device="cuda"):
    dtype = CARD_TYPES[kind]

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

    forward = without_gradient
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
    forward = without_gradient
    yield "exp 16 M", lambda: forward(torch.exp, data(1 << 24))
    yield "sort 16 M", lambda: forward(torch.sort, data(1 << 24))
    yield "FFT 16 M", lambda: forward(torch.fft.rfft, data(1 << 24))
    yield "FFT 4096x4096", lambda: forward(torch.fft.fft2, data(4096, 4096, dtype=torch.complex64))
    yield "SVD 512", lambda: forward(torch.linalg.svd, data(512, 512))
    yield "inverse 2048", lambda: forward(torch.linalg.inv, data(2048, 2048))


ON_CARD = {kind: (partial(on_card, kind),) for kind in CARD_TYPES} | {"others": (on_card_alone,)}
