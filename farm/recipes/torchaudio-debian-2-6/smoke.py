"""Smoke test of an installed torchaudio: operators, also on a card where there is one; files, where
a backend is.
"""

import math
import tempfile
from pathlib import Path

import torch
import torchaudio
from torchaudio import functional, transforms

RATE = 8000


def tone(hertz: float, rate: int = RATE) -> torch.Tensor:
    """One second of a sine, shape (1, rate)."""
    seconds = torch.arange(rate) / rate
    samples = torch.sin(2 * math.pi * hertz * seconds)
    return samples.unsqueeze(0)


def operators(device: str) -> None:
    """Operators in Python and in C++ with a result that can be worked out by hand."""
    double_rate = 2 * RATE
    recorded = tone(440).to(device)
    resampled = functional.resample(recorded, RATE, double_rate).cpu()
    inner = slice(1000, -1000)  # the ends lack neighbours
    torch.testing.assert_close(
        resampled[:, inner],
        tone(440, double_rate)[:, inner],
        atol=2e-2,
        rtol=0,
    )
    spectrogram = transforms.Spectrogram(n_fft=400).to(device)
    power = spectrogram(tone(1000).to(device))
    assert power.mean(2).argmax().item() == 50  # 1000 Hz of 8000 / 400 each
    # y[n] = x[n] + y[n-1] / 2 for an impulse: 1, 1/2, 1/4, …
    impulse = torch.zeros(1, 8, device=device)
    impulse[0, 0] = 1
    feedback = torch.tensor([1.0, -0.5], device=device)
    feedforward = torch.tensor([1.0, 0.0], device=device)
    filtered = functional.lfilter(impulse, feedback, feedforward)
    halves = 0.5 ** torch.arange(8.0).unsqueeze(0)
    torch.testing.assert_close(filtered.cpu(), halves)
    # One target, two frames, all words as probable as each other: the loss is that of two paths of
    # three steps each.
    logits = torch.zeros(1, 2, 2, 4, device=device)
    target = torch.ones(1, 1, dtype=torch.int32, device=device)
    frame_counts = torch.tensor([2], dtype=torch.int32, device=device)
    target_lengths = target[0]
    loss = functional.rnnt_loss(logits, target, frame_counts, target_lengths, blank=0)
    expected_loss = 3 * math.log(4) - math.log(2)
    assert abs(loss.item() - expected_loss) < 1e-4
    scores = torch.tensor(
        [
            [
                [0.0, 9, 0],
                [9.0, 0, 0],
                [0.0, 0, 9],
            ]
        ],
        device=device,
    )
    frames = torch.log_softmax(scores, 2)
    words = torch.tensor([[1, 2]], device=device)
    alignment, _ = functional.forced_align(frames, words)
    assert alignment.tolist() == [[1, 0, 2]]


def file() -> str:
    """A WAV file, written and read; which backends there are is up to what else is installed."""
    backends = torchaudio.list_audio_backends()
    if not backends:
        return "no backend for files (pip install soundfile)"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tone.wav")
        torchaudio.save(path, tone(440), RATE, encoding="PCM_S", bits_per_sample=16)
        read, rate = torchaudio.load(path)
    assert rate == RATE
    torch.testing.assert_close(read, tone(440), atol=2**-14, rtol=0)
    return f"a WAV file by {backends[0]}"


def decoder() -> str:
    """Loads the CTC decoder for CUDA, a module and a library of their own, which need no card for
    that.
    """
    if not torch.version.cuda:
        return ""
    from torchaudio.models.decoder import cuda_ctc_decoder  # noqa: PLC0415 (needs CUDA's runtime)

    assert callable(cuda_ctc_decoder)
    return ", CUDA's CTC decoder loads"


operators("cpu")
files = file()
card = "no card"
if torch.cuda.is_available():
    operators("cuda")
    card = torch.cuda.get_device_name(0)
done = "resample, spectrogram, lfilter, RNN-T loss, alignment" + decoder()
print(f"torchaudio {torchaudio.__version__}: {done}; {files}; on: CPU, {card}")
