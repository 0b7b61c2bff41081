"""What a tool that repairs a wheel says when it fails."""

import sys

import pytest

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.base.failures import read
from farm.wheel.repair_tools import run_tool


def test_a_full_disk_is_not_the_wheels_fault():
    with pytest.raises(InfrastructureError, match="No space left on device"):
        run_tool(
            [
                sys.executable,
                "-c",
                "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'w.whl')",
            ],
            {},
        )


@pytest.mark.parametrize(
    "words",
    [
        "Disk quota exceeded",
        "[WinError 112] There is not enough space on the disk",
        "Error: ENOSPC: no space left on device, write",
    ],
)
def test_it_is_known_by_the_words_that_builds_are_known_by(words):
    assert read([f"OSError: {words}"]).cause == "the disk is full"
    with pytest.raises(InfrastructureError, match="cannot write"):
        run_tool([sys.executable, "-c", f"import sys; print('OSError: {words}'); sys.exit(1)"], {})


def test_a_tools_traceback_is_not_shown():
    program = "print('finding DLLs')\nraise FileNotFoundError('Unable to find library: a.dll')"
    with pytest.raises(VerificationFailedError) as caught:
        run_tool([sys.executable, "-c", program], {})
    assert str(caught.value).splitlines()[-2:] == [
        "    finding DLLs",
        "    FileNotFoundError: Unable to find library: a.dll",
    ]
