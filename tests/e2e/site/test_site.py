"""The site in a real browser: every option by keyboard, lines as `farm` itself gives them and as
pip takes them.
"""

import http.server
import json
import os
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from farm.cli.main import main
from farm.index.publish import publish
from farm.index.store_urls import open_store
from farm.site.files import Contents, SiteSource, site_files
from farm.site.wheels import Wheel
from tests.indexes.wheels import build_wheel
from tests.servers.threads import answered_by

EVIL = '<img src=x onerror="document.title=1">\x1b[2J</script><script>document.title=2</script>'
ROOT = Path(__file__).parents[3]
SCREENSHOTS = ROOT / "artifacts" / "screenshots"  # to look at
WHEELS = [
    ("torch-2.6.0+cu118.sm35.avx-cp311-cp311-manylinux_2_36_x86_64.whl", "sm35-avx"),
    ("torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx"),
    ("torch-2.9.1+cu128.sm86.avx2-cp313-cp313-win_amd64.whl", "sm86-avx2"),
    ("torchvision-0.21.0+mine-cp311-cp311-manylinux_2_28_x86_64.whl", "my-group"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def browsers_home(tmp_path_factory):
    """Chromium keeps reports of its crashes below ~/.config."""
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def browser(browsers_home):
    if not shutil.which("chromium") and os.geteuid() == 0 and shutil.which("apt-get"):
        command = [
            "apt-get",
            "install",
            "-qq",
            "-y",
            "--no-install-recommends",
            "chromium",
            "fonts-dejavu-core",
        ]
        subprocess.run(["apt-get", "update", "-qq"], check=False, timeout=300)
        subprocess.run(command, check=False, timeout=900, stdout=subprocess.DEVNULL)
    found = shutil.which("chromium")
    if not found and os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail("chromium is missing: install the Debian package chromium")
    if not found:
        pytest.skip("chromium is missing: install the Debian package chromium")
    with sync_playwright() as playwright:
        environment = {**os.environ, "HOME": str(browsers_home)}
        opened = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox"], env=environment
        )
        yield opened
        opened.close()


def test_the_browser_keeps_to_a_home_of_its_own(browser, browsers_home):
    browser.new_page().close()
    assert (browsers_home / ".config" / "chromium").is_dir()


def publish_tiny(store, filename, group, folder):
    """A wheel of this name with nothing in it: pip reads its METADATA, the page its record."""
    path = build_wheel(folder, filename).path
    publish(store, path, group=group, upload_time=datetime.now(UTC), provenance={})


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A project whose index has a few wheels and a hostile report, and a web server before the
    index.
    """
    project = tmp_path_factory.mktemp("site") / "project"
    for name in ("ci", "dockerfiles"):
        shutil.copytree(ROOT / name, project / name)
    index = project / "artifacts" / "index"
    with answered_by(partial(Quiet, directory=index)) as url:
        config = project / "ci" / "farm.yaml"
        config.write_text(
            yaml.safe_dump(yaml.safe_load(config.read_text()) | {"index_public_url": url})
        )
        store = open_store(str(index))
        wheels = tmp_path_factory.mktemp("wheels")
        for filename, group in WHEELS:
            publish_tiny(store, filename, group, wheels)
        report = {
            "outcome": "failed",
            "reason": EVIL,
            "facts": {"machine": EVIL, "python": EVIL},
            "checks": [],
        }
        store.create(
            f"smoke/{WHEELS[2][0]}/0.json",
            json.dumps(report).encode(),
            content_type="application/json",
        )
        assert main(["--project", str(project), "site", "build"]) == 0
        yield project, url


@pytest.fixture
def page(browser):
    """A page whose every error and every request to elsewhere fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    problems = []
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on(
        "console",
        lambda message: problems.append(message.text) if message.type == "error" else None,
    )
    made.on(
        "request",
        lambda request: problems.append(request.url) if "127.0.0.1" not in request.url else None,
    )
    yield made
    context.close()
    assert not [problem for problem in problems if not problem.startswith("file://")]


def answer(page):
    return page.locator("#answer").inner_text()


def test_the_page_begins_with_what_is_there_and_its_line_is_taken_by_pip(page, served, tmp_path):
    _, url = served
    page.goto(f"{url}/index.html")
    assert page.locator("#table tbody tr").count() == 2
    page.click("#table tbody a:text-is('torch')")
    assert page.locator("details").count() == 3
    assert page.locator("details[open]").count() == 1
    page.locator("summary", has_text="2.6.0").click()
    line = page.locator("code", has_text="/whl/files/torch-2.6.0").inner_text()
    command = [
        sys.executable,
        "-m",
        "pip",
        *shlex.split(line)[1:],
        "--dry-run",
        "--no-deps",
        "--quiet",
        "--isolated",
    ]
    command += [
        "--target",
        str(tmp_path / "t"),
        "--only-binary=:all:",
        "--no-cache-dir",
        "--report",
        "-",
    ]
    command += ["--platform", "manylinux_2_36_x86_64", "--python-version", "311", "--abi", "cp311"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert '"version": "2.6.0+cu118.sm35.avx"' in result.stdout
    assert "adopted and not verified" in page.content()


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (
            "Tesla K40c",
            [
                "(sm_35)",
                "torch 2.6.0+cu118.sm35.avx in sm35-avx",
                "none of PyTorch's own wheels in the catalogue has code",
                "conda-forge",
            ],
        ),
        ("k40", ["farm submit --variant sm35-avx-py311 --channel debian-2.6.0"]),
        (
            "gtx1080ti",
            [
                "(sm_61)",
                "torch 2.14.1 with CUDA 12.6 runs on gtx1080ti",
                "No wheel here is in a group for it.",
            ],
        ),
        (
            "rtx3090",
            [
                "torch 2.9.1+cu128.sm86.avx2 in sm86-avx2",
                "torch 2.15.0 with CUDA 13.2 runs on rtx3090",
            ],
        ),
        ("GH200", ["linux-aarch64", "torch 2.15.0"]),
        ("Radeon RX 7900 XTX", ["is a card of AMD"]),
        ("Voodoo 2", ["The catalogue has no card Voodoo 2"]),
        ("torchvision", ["Project: torchvision", "/whl/files/torchvision-0.21.0"]),
        ("pytorch", ["/whl/files/torch-2.6.0%2Bcu118.sm35.avx-"]),
        ("torch==2.6.0", ["/whl/files/torch-2.6.0%2Bcu118.sm35.avx-"]),
        ("sm35-avx", ["from the group sm35-avx", "/whl/files/torch-2.6.0"]),
        ("780", ["780 (sm_35)", "none of PyTorch's own wheels"]),
    ],
)
def test_a_card_and_a_project_are_found_by_name(page, served, typed, says):
    _, url = served
    page.goto(f"{url}/index.html")
    page.fill("#have", typed)
    assert not [text for text in says if text not in answer(page)], answer(page)


NVIDIA_SMI = """\
user@thor:~$ nvidia-smi
| NVIDIA-SMI 470.256.02   Driver Version: 470.256.02   CUDA Version: 11.4     |
|   0  NVIDIA A100-SXM...  Off  | 00000000:03:00.0 Off |                    0 |
|    0   N/A  N/A      1234      C   /opt/h100/bin/python             123MiB |
"""


def test_a_paste_is_read_with_its_driver(page, served):
    _, url = served
    page.goto(f"{url}/index.html")
    page.fill("#have", NVIDIA_SMI.replace("NVIDIA A100-SXM...", "NVIDIA GeForce ..."))
    assert "cut off the card's name" in answer(page)
    page.fill("#have", NVIDIA_SMI.replace("NVIDIA A100-SXM...", "NVIDIA A100        "))
    assert "driver 470.256.02" in answer(page)
    assert "torch 2.7.1 with CUDA 11.8 runs on NVIDIA A100" in answer(page)
    page.fill(
        "#have",
        "GPU 0: Tesla V100-PCIE-16GB (UUID: GPU-1)\nGPU 1: NVIDIA GeForce RTX 5090 (UUID: GPU-2)",
    )
    assert "torch 2.10.0 with CUDA 12.8 runs on Tesla V100" in answer(page)
    page.fill(
        "#have", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    )
    assert "No NVIDIA driver runs there" in answer(page)
    page.fill("#have", EVIL)
    assert answer(page) == "No card is named there."
    page.fill("#have", "cpu")
    assert "No wheel here is in a group for it." in answer(page)
    assert "--index-url https://download.pytorch.org/whl/cpu" in answer(page)


def test_the_keyboard_is_enough(page, served):
    _, url = served
    page.goto(f"{url}/index.html")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
    assert {"have", "platform", "python", "torch", "torchvision"} <= reached


@pytest.fixture(scope="module")
def long_page(tmp_path_factory):
    """The page of a project with 90 wheels: 18 releases for five groups."""
    wheels = []
    for minor in range(18, 0, -1):
        for group in ("sm35-avx", "sm37-avx", "sm61-avx2", "sm70-avx2", "cpu-avx2"):
            version = f"2.{minor}.0+cu118.{group.replace('-', '.')}"
            name = f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
            published = "2026-11-21T12:00:00Z"
            wheels.append(Wheel(name, "torch", version, (group,), 10**8, "ab" * 32, published))
    folder = tmp_path_factory.mktemp("long")
    source = SiteSource(project=None, root="https://wheels.example.org/")

    def install_words(group, filename):
        name, version = filename.split("-")[:2]
        return f"{name}=={version}", "--index-url", f"{source.root}whl/{group}/simple/"

    for key, data in site_files(Contents((), wheels, install_words), source).items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "project" / "torch.html"


def tab_stops(page):
    """How many elements the Tab key reaches before it comes back to the first one."""
    mark = """() => {
        const element = document.activeElement;
        const isNew = element !== document.body && !element.dataset.reached;
        element.dataset.reached = "yes";
        return isNew;
    }"""
    stops = 0
    page.keyboard.press("Tab")
    while page.evaluate(mark):
        stops += 1
        page.keyboard.press("Tab")
    return stops


@pytest.mark.parametrize("width", [375, 1280])
def test_ninety_wheels_have_few_tab_stops(page, long_page, width):
    """A block for each version and scrolling regions made 238 of them."""
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(long_page.as_uri())
    assert tab_stops(page) <= 3 + 18 + 2 * 5, "navigation, releases, two links of each open file"


def test_a_link_to_a_version_opens_its_release_and_shows_its_line(page, long_page):
    page.goto(f"{long_page.as_uri()}#2.7.0+cu118.sm61.avx2")
    line = page.locator("code", has_text="torch==2.7.0+cu118.sm61.avx2")
    assert line.is_visible()
    top = line.bounding_box()["y"]
    assert 0 <= top <= 200, "it is at the head of the window"


def test_a_phone_shows_no_half_empty_rows(page, served):
    """At 375 pixels each number had a line of its own, without its heading."""
    _, url = served
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(f"{url}/index.html")
    row = page.locator("#table tbody tr").first
    assert "versions" in row.locator("td").nth(1).evaluate(
        "cell => getComputedStyle(cell, '::before').content"
    )
    assert row.bounding_box()["height"] < 120
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_names_do_not_run(page, served):
    _, url = served
    page.goto(f"{url}/project/torch.html")
    assert page.title() == "torch: versions and files"
    assert page.locator("img").count() == 0
    assert 'onerror="document.title=1"' in page.content().replace("&#34;", '"')


def test_without_javascript_and_from_a_folder_the_tables_are_there(browser, served):
    project, url = served
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{url}/index.html")
    assert page.locator("#table tbody tr").count() == 2
    context.close()
    context = browser.new_context()
    page = context.new_page()
    page.goto((project / "artifacts" / "index" / "index.html").as_uri() + "?card=K40")
    assert "sm35-avx" in answer(page)
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("wide", 1280), ("narrow", 390)])
def test_axe_finds_nothing_and_nothing_sticks_out(browser, served, scheme, name, width):
    _, url = served
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for path in ("index.html?card=K40", "index.html", "project/torch.html"):
        page.goto(f"{url}/{path}")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        file = path.replace("/", "-").replace("?", "-").replace(".html", "")
        page.screenshot(path=SCREENSHOTS / f"{file}-{name}-{scheme}.png", full_page=True)
    context.close()
