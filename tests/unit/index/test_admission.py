"""What METADATA may hold before a wheel is published."""

import pytest
from packaging.version import Version

from farm.errors import PublishRefusedError
from farm.index.admission import PYPI_RULES, check_metadata


def check(version):
    text = f"Metadata-Version: {version}\nName: torch\nVersion: 2.6.0\nRequires-Python: >=3.9\nLicense-File: LICENSE\n"
    return check_metadata("torch-2.6.0-py3-none-any.whl", "torch", Version("2.6.0"), text.encode(), PYPI_RULES)


@pytest.mark.parametrize("version", ["2.1", "2.2", "2.3", "2.4"])
def test_a_license_file_as_setuptools_writes_it_is_taken(version):
    assert check(version) == ">=3.9"


def test_older_metadata_is_still_read_strictly():
    with pytest.raises(PublishRefusedError, match="bad License-File"):
        check("1.2")
