"""Operations beside matrix products: convolution, sorting, FFT, training; here against the CPU or
float64.
"""

from __future__ import annotations

import importlib
import math
import re
import warnings
from typing import Any

from .products import exactly, gamma, largest_share, random_matrix, within
from .recorder import FailedError, NotRunError


def check_complex(torch: Any, device: str) -> str:
    """Products of vectors of complex whole numbers, exact, against products of their parts.

    BLAS libraries return a complex dot product in two ways (GNU's and Intel's Fortran); a torch
    that was built for the wrong one gets 0 and says nothing.
    """
    generator = torch.Generator().manual_seed(1)

    def whole_numbers() -> Any:
        return torch.randint(-9, 10, (37,), generator=generator).double()

    def exact_sum(real: Any, imaginary: Any) -> complex:
        return complex(float(real.sum()), float(imaginary.sum()))

    a = whole_numbers()
    b = whole_numbers()
    c = whole_numbers()
    d = whole_numbers()
    plain = exact_sum(a * c - b * d, a * d + b * c)
    conjugate = exact_sum(a * c + b * d, a * d - b * c)

    for name in ("complex64", "complex128"):
        dtype = getattr(torch, name)
        x = torch.complex(a, b).to(dtype).to(device)
        y = torch.complex(c, d).to(dtype).to(device)
        row = x[None]
        column = y[:, None]
        of_matrices = (row @ column)[0, 0]
        products = {
            "torch.dot": (torch.dot(x, y), plain),
            "torch.vdot": (torch.vdot(x, y), conjugate),
            "x @ y": (x @ y, plain),
            "matrices": (of_matrices, plain),
        }
        for operation, (got, exact) in products.items():
            if complex(got.item()) != exact:
                raise FailedError(f"{operation} of {name}: {got.item()}", str(exact))
    return "4 products of 2 types, exact"


def check_convolution(torch: Any, device: str) -> str:
    """A convolution and its gradients against float64 on the CPU.

    The algorithm may be Winograd's or an FFT, which have no bound by element; the bound is by
    norms: gamma_n n max|x| max|w| with n the products of an element, which is far above their
    errors and far below those of TF32.
    """
    if device == "cuda":
        if not torch.backends.cudnn.is_available():
            raise NotRunError("this torch was built without cuDNN, or cuDNN does not load")
        if not torch.backends.cudnn.enabled:
            raise NotRunError("cuDNN is turned off")
    generator = torch.Generator().manual_seed(1)
    overall = 0.0
    for channels, size, kernel, stride in ((3, 17, 3, 1), (8, 32, 5, 2), (16, 14, 1, 1)):
        x = random_matrix(torch, (2, channels, size, size), "float32", 12, generator)
        w = random_matrix(torch, (8, channels, kernel, kernel), "float32", 12, generator)
        results = []
        for dtype, place in ((torch.float64, "cpu"), (torch.float32, device)):
            images = x.to(dtype).to(place).clone().requires_grad_()
            weights = w.to(dtype).to(place).clone().requires_grad_()
            with exactly(torch):
                out = torch.nn.functional.conv2d(
                    images, weights, stride=stride, padding=kernel // 2
                )
                out.sum().backward()
            results.append((out.detach(), images.grad, weights.grad))
        terms = (channels * kernel * kernel, 8 * kernel * kernel, 2 * out.shape[2] * out.shape[3])
        for operation, n, exact, got in zip(
            ("output", "gradient of x", "gradient of w"), terms, *results
        ):
            bound = torch.full_like(exact, gamma(n + 1, 2.0**-24) * n)
            label = f"{operation} of {channels} channels, kernel {kernel}"
            share = largest_share(torch, got, exact, bound)
            overall = max(overall, within(label, share, "|error| <= n gamma_n"))
    if device == "cuda":
        version = f"cuDNN {torch.backends.cudnn.version()}, "
    else:
        version = ""
    return f"{version}3 shapes with gradients, largest error {overall:.2g} of its bound"


def check_small_floats(torch: Any) -> str:
    """Attention, linear and convolution in bfloat16 and float16 on the CPU, against float64.

    Which code computes them depends on what the CPU has beside its level (AMX, AVX512-BF16), and a
    build without the tier that this code is in can fail there. The bound is a rounding for each sum
    of absolute products; of attention, eight roundings of the largest value, 1.
    """
    generator = torch.Generator().manual_seed(1)
    functional = torch.nn.functional
    done = []
    for name, roundoff in (("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
        dtype = getattr(torch, name)

        def values(*shape: int, dtype: Any = dtype) -> Any:
            return random_matrix(torch, shape, "float64", 8, generator).to(dtype)

        x, w = values(96, 128), values(64, 128)
        images, kernels = values(2, 16, 14, 14), values(8, 16, 3, 3)
        operations = {
            "linear": (functional.linear, (x, w)),
            "convolution": (functional.conv2d, (images, kernels)),
        }
        for operation_name, (operation, operands) in operations.items():
            got = implemented(lambda call=operation, these=operands: call(*these))
            if got is None:
                continue
            exact = operation(*(operand.double() for operand in operands))
            bound = roundoff * operation(*(operand.double().abs() for operand in operands))
            within(
                f"{operation_name} in {name}", largest_share(torch, got, exact, bound), "|error|"
            )
            done.append(f"{operation_name} {name}")
        attention = getattr(functional, "scaled_dot_product_attention", None)
        if attention is None:
            continue
        q = values(2, 4, 512, 64)
        k = values(2, 4, 512, 64)
        v = values(2, 4, 512, 64)
        got = implemented(lambda: attention(q, k, v, is_causal=True))  # noqa: B023 called here
        if got is not None:
            exact = attention(q.double(), k.double(), v.double(), is_causal=True)
            bound = torch.full_like(exact, 8 * roundoff)
            within(f"attention in {name}", largest_share(torch, got, exact, bound), "|error|")
            done.append(f"attention {name}")
    if not done:
        raise NotRunError("this torch has none of them on the CPU")
    return ", ".join(done)


def implemented(call: Any) -> Any:
    """The result; None where this release has no code for the type on the CPU."""
    try:
        return call()
    except RuntimeError as error:
        if "not implemented for" in str(error):
            return None
        raise


def check_reduction(torch: Any, device: str) -> str:
    generator = torch.Generator().manual_seed(1)
    x = random_matrix(torch, (300, 1001), "float32", 24, generator)
    on_card = x.float().to(device)
    on_cpu = x.float()
    roundoff = 2.0**-24
    for dim in (0, 1):
        exact = x.sum(dim)
        sizes = x.abs().sum(dim)
        bound = gamma(x.shape[dim], roundoff) * sizes + roundoff * exact.abs()
        share = largest_share(torch, on_card.sum(dim), exact, bound)
        within(f"sum over {dim}", share, "gamma_n sum |x|")

        for name in ("amax", "amin", "argmax"):
            got = getattr(on_card, name)(dim)
            expected = getattr(on_cpu, name)(dim)
            if not torch.equal(got.cpu(), expected):
                raise FailedError(f"{name} over {dim}: other than on the CPU", "the same")

    total = int((on_card > 0).sum())
    expected_total = int((x > 0).sum())
    if total != expected_total:
        raise FailedError(f"{total} positive numbers", f"{expected_total}")
    return "sum, amax, amin, argmax, count"


def check_sort(torch: Any, device: str) -> str:
    generator = torch.Generator().manual_seed(1)
    for count in (1, 31, 1025, 300_000):
        x = torch.randint(-1000, 1000, (count,), generator=generator)
        values, order = torch.sort(x.to(device), stable=True)
        on_cpu, order_here = torch.sort(x, stable=True)
        same_values = torch.equal(values.cpu(), on_cpu)
        same_order = torch.equal(order.cpu(), order_here)
        if not (same_values and same_order):
            raise FailedError(
                f"{count} numbers: another order than on the CPU", "the same, and stable"
            )
    return "4 sizes, exact and stable"


def check_fft(torch: Any, device: str) -> str:
    """Against float64 on the CPU: the error by norms is below log2(n) times a few roundoffs
    (Higham, chapter 24).
    """
    generator = torch.Generator().manual_seed(1)

    def norm(numbers: Any) -> float:
        squares = numbers.abs().pow(2)
        return float(squares.sum().sqrt())

    overall = 0.0
    for count in (8, 1024, 1000, 4099):
        x = random_matrix(torch, (3, count), "complex64", 24, generator)
        exact = torch.fft.fft(x)
        single = x.to(torch.complex64)
        got = torch.fft.fft(single.to(device))
        # 4099 is a prime: Bluestein's way does three transforms of more than twice the length.
        growth = math.log2(2 * count) * 2.0**-24
        bound = 32 * growth * norm(exact)
        error = norm(got.cpu().to(torch.complex128) - exact)
        share = within(f"{count} points", error / bound, "|error| <= 32 log2(2n) u |X|")
        overall = max(overall, share)

        back = torch.fft.ifft(got).cpu().to(torch.complex128)
        bound_back = 64 * growth * norm(x)
        within(f"{count} points and back", norm(back - x) / bound_back, "the input")
    return f"4 sizes and back, largest error {overall:.2g} of its bound"


def check_indexing(torch: Any, device: str) -> str:
    """Whole numbers, so that every order of additions gives the same."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-50, 50, (257, 33), generator=generator)
    rows = torch.randint(0, 257, (1000,), generator=generator)
    values = torch.randint(-9, 9, (1000, 33), generator=generator)

    def use(place: str) -> dict[str, Any]:
        a = x.to(place)
        i = rows.to(place)
        v = values.to(place)
        return {
            "gather by rows": a[i],
            "mask": a[a > 10],
            "add at repeated rows": a.index_put((i,), v, accumulate=True),
            "scatter": torch.zeros_like(a).scatter_add(0, i[:, None].expand(-1, 33) % 257, v),
            "where": torch.where(a > 0, a, -a),
            "nonzero": a.nonzero(),
            "cumsum": a.cumsum(0),
        }

    on_cpu = use("cpu")
    on_device = use(device)
    for name, exact in on_cpu.items():
        if not torch.equal(on_device[name].cpu(), exact):
            raise FailedError(f"{name}: other numbers than on the CPU", "the same")
    return ", ".join(on_cpu)


def check_training(torch: Any, device: str) -> str:
    """Thirty steps of gradient descent on a small net must lower its loss to less than half."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(256, 8, generator=generator) * 2 - 1
    wave = torch.sin(3 * x[:, :1])
    y = wave + x[:, 1:2] * x[:, 2:3]
    first = torch.rand(8, 64, generator=generator) - 0.5
    second = (torch.rand(64, 1, generator=generator) - 0.5) / 4
    x = x.to(device)
    y = y.to(device)
    first = first.to(device).requires_grad_()
    second = second.to(device).requires_grad_()
    weights = [first, second]

    losses = []
    for _ in range(30):
        hidden = torch.relu(x @ first)
        loss = torch.nn.functional.mse_loss(hidden @ second, y)
        losses.append(loss.item())
        slopes = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes):
                weight.sub_(0.1 * slope)

    described = f"loss {losses[0]:.4f}, after 30 steps {losses[-1]:.4f}"
    if not losses[-1] < 0.5 * losses[0]:
        raise FailedError(described, "less than half")
    return described


def cpu_capability(torch: Any) -> str:
    """`AVX2`: the level that torch chose for this CPU; DEFAULT where it has nothing above the
    build's own flags.
    """
    if hasattr(torch.backends, "cpu") and hasattr(torch.backends.cpu, "get_cpu_capability"):
        return str(torch.backends.cpu.get_cpu_capability())
    match = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
    if match is None:
        raise NotRunError("this torch does not report it")
    return match.group(1)


def check_numpy(torch: Any) -> str:
    """The bridge shares memory in both directions."""
    try:
        numpy = importlib.import_module("numpy")
    except ImportError as error:
        raise NotRunError(f"numpy is not installed ({error})") from None
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    tensor = torch.from_numpy(array)
    tensor[1, 2] = 99
    back = torch.ones(2, 2).numpy()
    if array[1, 2] != 99 or back.shape != (2, 2) or float(back.sum()) != 4:
        raise FailedError("a copy, or other numbers", "one memory, the same numbers")
    return f"numpy {numpy.__version__}"


def check_quantized(torch: Any, expected: str | None) -> str:
    """A quantized linear layer: whole-number products, rounded once."""
    engines = [
        str(engine)
        for engine in torch.backends.quantized.supported_engines
        if str(engine) != "none"
    ]
    if expected is not None and expected not in engines:
        raise FailedError(" ".join(engines) or "no engine", f"the engine {expected}")
    if not engines:
        raise NotRunError("this build has no quantized engine, or none for this CPU")
    generator = torch.Generator().manual_seed(1)
    # Activations of 7 bits: fbgemm's AVX2 kernels may saturate with 8 (PyTorch documentation,
    # reduce_range).
    x = torch.randint(0, 128, (5, 64), generator=generator)
    w = torch.randint(-64, 64, (9, 64), generator=generator)
    exact = ((x - 60) @ w.t()).double() * 0.125
    # No value reaches the ends of the 8 bits: saturation would hide an error.
    scale = float(exact.abs().max()) / 120
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 2.13 announces the end of these functions
        activations = torch.quantize_per_tensor((x - 60) * 0.5, 0.5, 60, torch.quint8)
        weights = torch.quantize_per_tensor(w * 0.25, 0.25, 0, torch.qint8)
        for engine in engines:
            torch.backends.quantized.engine = engine
            packed = torch.ops.quantized.linear_prepack(weights, None)
            got = torch.ops.quantized.linear(activations, packed, scale, 128).dequantize().double()
            worst = float((got - exact).abs().max()) / scale
            if not worst <= 0.51:  # half a step of rounding, and float32 in the scale
                raise FailedError(f"{engine}: {worst:.3g} steps away", "half a step")
    return "{}: at most half a step away".format(" ".join(engines))
