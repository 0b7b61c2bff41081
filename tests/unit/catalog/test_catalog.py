"""The catalogue's files: every fact has a source, the files agree with each other, wrong files are
refused.
"""

import re

import pytest

from farm import catalog
from farm.base import yamlfile
from farm.base.yamlfile import load
from farm.catalog import models, number
from farm.plan.compat import other_makers
from farm.plan.variant import PYTHONS
from tools import refresh_catalogue

TABLES = {
    "architectures": models.Architectures,
    "cuda": models.Toolkits,
    "cudnn": models.CudnnReleases,
    "torch": models.TorchReleases,
    "cpus": models.CpuLevels,
    "features": models.Features,
    "msvc": models.Msvc,
    "python": models.PythonVersions,
    "windows": models.Windows,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_fact_has_a_source_and_every_source_a_fact(name):
    table = load(catalog.FOLDER / f"{name}.yaml", TABLES[name])
    records = [record for field in table.RECORDS for record in getattr(table, field).values()]
    assert records
    for record in records:
        facts = record.model_fields_set - {"sources", "unconfirmed"}
        assert facts <= set(record.sources) <= set(type(record).model_fields)
        assert all(len(text) > 8 or text == "python.org" for text in record.sources.values())
        assert set(record.unconfirmed) <= facts
    assert set(table.sources) <= set().union(*(record.model_fields_set for record in records))


def test_every_row_names_a_source_of_its_file():
    for file, rows in (
        (catalog.official(), catalog.official().wheels),
        (other_makers.makers(), other_makers.makers().makers),
    ):
        assert {row.source for row in rows} <= set(file.sources)


@pytest.mark.parametrize(
    ("versions", "what"),
    [
        (
            catalog.toolkits,
            (
                "10.2 11.3 11.4 11.6 11.7 11.8 12.0 12.1 12.2 12.3 12.4 12.5 12.6 12.8 12.9 13.0 "
                "13.1 "
                "13.2 13.3 13.4 13.5"
            ),
        ),
        (
            catalog.torch_releases,
            (
                "1.12.0 1.12.1 1.13.0 1.13.1 2.0.0 2.0.1 2.1.0 2.1.1 2.1.2 2.2.0 2.2.1 2.2.2 "
                "2.3.0 2.3.1 2.4.0 2.4.1 "
                "2.5.0 2.5.1 2.6.0 2.7.0 2.7.1 2.8.0 2.9.0 2.9.1 2.10.0 2.11.0 2.12.0 2.12.1 "
                "2.13.0 2.14.0 2.14.1 "
                "2.15.0"
            ),
        ),
    ],
)
def test_versions_in_ascending_order(versions, what):
    assert " ".join(versions()) == what
    assert list(versions()) == sorted(versions(), key=number)
    assert list(catalog.cudnn_releases()) == sorted(catalog.cudnn_releases(), key=number)


def test_keys_and_versions_agree():
    assert all(toolkit.release.startswith(key + ".") for key, toolkit in catalog.toolkits().items())
    assert all(
        release.version.startswith(key + ".") for key, release in catalog.cudnn_releases().items()
    )
    known = catalog.architectures().architectures
    assert all(f"sm{arch.arch_list.replace('.', '')}" == key for key, arch in known.items())
    assert set(catalog.pythons().versions) == set(PYTHONS)


def test_drivers_rise_with_the_toolkits():
    for platform in ("linux", "windows"):
        floors = [toolkit.driver(platform) for toolkit in catalog.toolkits().values()]
        known = [number(floor) for floor in floors if floor]
        assert known == sorted(known)
    for version, toolkit in catalog.toolkits().items():
        major = catalog.cuda_majors()[version.split(".")[0]]
        assert toolkit.driver_linux is None or number(major.driver_linux) <= number(
            toolkit.driver_linux
        )


def test_kepler_ends_with_cuda_11_and_cudnn_8_7():
    assert [version for version, toolkit in catalog.toolkits().items() if 35 in toolkit.sm][
        -1
    ] == "11.8"
    assert [name for name, release in catalog.cudnn_releases().items() if release.sm_min <= 35][
        -1
    ] == "8.7.0"
    assert [name for name, release in catalog.cudnn_releases().items() if release.sm_min < 75][
        -1
    ] == "9.10.2"


def test_every_sm_of_a_variant_has_a_toolkit():
    for name in catalog.architectures().architectures:
        assert any(int(name[2:]) in toolkit.sm for toolkit in catalog.toolkits().values()), name


def test_archives_exist_for_versions_that_are_in_the_catalogue():
    """What the nvidia provider offers is judged by the rules."""
    releases = {toolkit.release for toolkit in catalog.toolkits().values()}
    for path in (catalog.FOLDER / "redist").glob("cuda-*.yaml"):
        assert path.stem.removeprefix("cuda-") in releases
    for path in (catalog.FOLDER / "redist").glob("cudnn-*.yaml"):
        assert path.stem.removeprefix("cudnn-") in catalog.cudnn_releases()


def test_official_combinations_name_known_cudnns():
    known = {release.version for release in catalog.cudnn_releases().values()}
    for release in catalog.torch_releases().values():
        assert release.official
        assert all(official.cudnn in known for official in release.official if official.cudnn)


@pytest.mark.parametrize(
    ("since", "takes", "refuses"),
    [
        ("1.12.0", ["3.5", "8.6(8.0)"], ["9.0a", "10.0", "12.0f"]),
        ("2.4.0", ["3.5", "9.0a"], ["10.0", "12.0f"]),
        ("2.6.0", ["3.5", "9.0a", "10.0", "12.0a"], ["12.0f"]),
        ("2.9.0", ["3.5", "9.0a", "10.0", "12.0f"], ["12", "x"]),
    ],
)
def test_grammar_of_the_arch_list(since, takes, refuses):
    pattern = catalog.arch_list_grammar().numbers[since]
    assert all(re.fullmatch(pattern, text) for text in takes)
    assert not any(re.fullmatch(pattern, text) for text in refuses)


def test_levels_and_switches_name_each_other():
    for level in catalog.cpu_levels().values():
        assert set(level.torch_off) <= set(catalog.features())
    for feature in catalog.features().values():
        assert feature.cpu is None or feature.cpu in catalog.cpu_levels()
        assert set(feature.needs) <= set(catalog.features())
    assert catalog.cpu_levels()["avx"].torch_off == ["fbgemm", "nnpack"]


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.9", "2.9.1"),
        ("2.10", "2.10.0"),
        ("2.9.1", "2.9.1"),
        ("2", "2.15.0"),
        ("2.16", None),
        ("", None),
    ],
)
def test_a_version_by_its_beginning(version, found):
    assert catalog.find(catalog.torch_releases(), version) == found


def test_a_version_prefix_matches_whole_components():
    assert catalog.find(catalog.cudnn_releases(), "8.9") == "8.9.7"
    assert catalog.find(catalog.cudnn_releases(), "9.1") == "9.1.0"


@pytest.mark.parametrize(
    ("major", "branch"),
    [
        (465, 465),
        (470, 470),
        (472, 470),
        (474, 470),
        (495, 495),
        (516, 516),
        (580, 580),
        (581, 580),
        (590, 590),
    ],
)
def test_windows_drivers_belong_to_the_branch_before_the_next(major, branch):
    """472.50 comes with CUDA 11.4.4 and runs a K40; 516.94, with CUDA 11.7.1, does not."""
    assert catalog.driver_branch(major) == branch


OWN = sorted(yamlfile.FOLDER.rglob("*.yaml"))


@pytest.mark.parametrize("path", OWN, ids=str)
def test_the_packages_files_pass_the_checks_that_are_left_out_when_they_are_read(path):
    """`load` takes them without looking for aliases, duplicate keys and odd values: it is done
    here.
    """
    data, _ = yamlfile.document(path.read_text(encoding="utf-8"), path)
    assert data


def test_the_facts_kept_by_hand_are_listed():
    lines = list(refresh_catalogue.by_hand())
    assert any("driver of CUDA 13.5" in line for line in lines)
    assert any("2.4.1, 2.5.0, 2.5.1" in line for line in lines)
