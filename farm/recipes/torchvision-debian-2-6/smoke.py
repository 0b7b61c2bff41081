"""Smoke test of an installed torchvision: operators, also on a card where one is there; image
codecs; transforms.
"""

import base64

import torch
import torchvision
from torchvision import io, ops
from torchvision.transforms import v2

# 2 x 2 pixels: red, green, blue, white. Lossless WebP and GIF, as Pillow writes them.
WEBP = "UklGRiwAAABXRUJQVlA4TB8AAAAvAUAAAB8gEEjeHzqN+RcQFPwf3fxHZA/gBgwR/Q8BAA=="
GIF = "R0lGODdhAgACAIEAAP8AAAD/AAAA/////ywAAAAAAgACAAAIBwABBBAwICAAOw=="
COLOURS = torch.tensor(
    [
        [[255, 0], [0, 255]],
        [[0, 255], [0, 255]],
        [[0, 0], [255, 255]],
    ],
    dtype=torch.uint8,
)


def operators(device: str) -> None:
    """Each operator with a result that can be worked out by hand."""
    boxes = torch.tensor(
        [
            [0.0, 0, 10, 10],
            [1, 1, 11, 11],
            [20, 20, 30, 30],
        ],
        device=device,
    )
    scores = torch.tensor([0.9, 0.8, 0.7], device=device)
    assert ops.nms(boxes, scores, 0.5).tolist() == [0, 2]
    image = torch.arange(64.0, device=device).reshape(1, 1, 8, 8)
    whole_image = torch.tensor([[0.0, 0, 0, 8, 8]], device=device)
    # Means of the quarters: a plane, so each is the plane's value at the middle of its quarter.
    quarters = torch.tensor(
        [
            [
                [
                    [13.5, 17.5],
                    [45.5, 49.5],
                ]
            ]
        ],
        device=device,
    )
    aligned = ops.roi_align(image, whole_image, output_size=2, sampling_ratio=4, aligned=True)
    torch.testing.assert_close(aligned, quarters)
    largest = ops.roi_pool(image, whole_image, output_size=1)
    assert largest.item() == 63
    kernel = torch.ones(1, 1, 3, 3, device=device)
    offset = torch.zeros(1, 18, 6, 6, device=device)
    deformed = ops.deform_conv2d(image, offset, kernel)
    expected = torch.nn.functional.conv2d(image, kernel)
    torch.testing.assert_close(deformed, expected)


def codecs() -> None:
    """JPEG, PNG, WebP and GIF, each read by the library that is in the wheel."""
    grey = torch.full((3, 16, 16), 128, dtype=torch.uint8)
    jpeg = io.encode_jpeg(grey, quality=95)
    difference = io.decode_jpeg(jpeg).int() - 128
    assert difference.abs().max() <= 1
    noise = torch.randint(0, 256, (3, 9, 7), dtype=torch.uint8)
    png = io.encode_png(noise)
    assert torch.equal(io.decode_png(png), noise)
    webp = io.decode_webp(packed(WEBP))
    assert torch.equal(webp[:3], COLOURS)
    gif = io.decode_gif(packed(GIF))
    assert torch.equal(gif, COLOURS)


def packed(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def transforms() -> None:
    steps = v2.Compose(
        [
            v2.Resize((4, 4), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5], [0.5]),
        ]
    )
    white = torch.full((1, 8, 8), 255, dtype=torch.uint8)
    torch.testing.assert_close(steps(white), torch.ones(1, 4, 4))


operators("cpu")
codecs()
transforms()
card = "no card"
if torch.cuda.is_available():
    operators("cuda")
    card = torch.cuda.get_device_name(0)
print(
    f"torchvision {torchvision.__version__}: operators, JPEG, PNG, WebP, GIF, transforms; "
    f"operators on: CPU, {card}"
)
