"""The site in a real browser: every option by keyboard, lines as `farm` itself gives them and as pip takes them."""

import http.server
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from farm.cli.main import main
from farm.index.backends import open_store
from farm.index.publish import publish
from farm.plan.settings import load_settings
from farm.run.journal.model import Request
from farm.run.release import pip_line, pip_source
from farm.run.report import Silent
from farm.run.workspace import Workspace, open_journal
from farm.site.offers import offers
from tests.indexes.wheels import build_wheel

CHOICES = 50
SEED = 20261121
EVIL = '<img src=x onerror="document.title=1">\x1b[2J</script><script>document.title=2</script>'
ROOT = Path(__file__).parents[3]
SCREENSHOTS = ROOT / "artifacts" / "screenshots"  # to look at
TAGS = {"linux": "manylinux_2_28_x86_64", "windows": "win_amd64", "macos": "macosx_12_0_arm64"}


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
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        subprocess.run(["apt-get", "update", "-qq"], check=False, timeout=300)
        subprocess.run(command, check=False, timeout=900, stdout=subprocess.DEVNULL)
    found = shutil.which("chromium")
    if not found and os.environ.get("FARM_REQUIRE") == "all":
        pytest.fail("chromium is missing: install the Debian package chromium")
    if not found:
        pytest.skip("chromium is missing: install the Debian package chromium")
    with sync_playwright() as playwright:
        environment = {**os.environ, "HOME": str(browsers_home)}
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"], env=environment)
        yield opened
        opened.close()


def test_the_browser_keeps_to_a_home_of_its_own(browser, browsers_home):
    browser.new_page().close()
    assert (browsers_home / ".config" / "chromium").is_dir()


def tag(offer):
    system = TAGS[offer.platform].replace("x86_64", "aarch64" if offer.cpu.startswith("armv") else "x86_64")
    abi = "cp" + offer.python[2:]
    return abi.removesuffix("t"), abi, system


def publish_tiny(store, offer, folder):
    """A wheel with the offer's name and nothing in it: pip reads its METADATA, the selector its record."""
    python, abi, system = tag(offer)
    path = build_wheel(folder, f"{offer.package}-{offer.version}-{python}-{abi}-{system}.whl").path
    provenance = {"plan": "0" * 64}
    publish(store, path, group=offer.group, upload_time=datetime.now(UTC), provenance=provenance)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A project whose index has 50 of its offers, a hostile run in its journal, and a web server before the index."""
    project = tmp_path_factory.mktemp("site") / "project"
    for name in ("ci", "dockerfiles"):
        shutil.copytree(ROOT / name, project / name)
    index = project / "artifacts" / "index"
    handler = partial(Quiet, directory=index)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    config = project / "ci" / "farm.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"index_public_url": url}))
    some = {offer.key: offer for offer in offers(project) if not offer.blocked}
    chosen = random.Random(SEED).sample(list(some.values()), CHOICES)
    store = open_store(str(index))
    wheels = tmp_path_factory.mktemp("wheels")
    for offer in chosen:
        publish_tiny(store, offer, wheels)
    with open_journal(project, load_settings(project)) as journal:
        plan = {"package": EVIL, "variant": EVIL, "version": EVIL, "platform": EVIL}
        run = journal.create_run("f" * 64, Request(), plan)
        journal.event(run.id, "step", name=EVIL, seconds=3, outcome=EVIL)
        journal.event(run.id, "error", text=EVIL, hint=None)
        journal.finish_run(run.id, "failure", 5)
    assert main(["--project", str(project), "site", "build"]) == 0
    yield project, url, chosen
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser):
    """A page whose every error and every request to elsewhere fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    problems = []
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    made.on("request", lambda request: problems.append(request.url) if "127.0.0.1" not in request.url else None)
    yield made
    context.close()
    assert not [problem for problem in problems if not problem.startswith("file://")]


def line_on(page):
    return page.locator(".command", has_text="pip").first.locator("code").inner_text()


def test_the_line_is_what_farm_says_and_pip_takes_it(page, served, tmp_path):
    project, url, chosen = served
    workspace = Workspace(project, load_settings(project), Silent())
    lines = []
    for offer in chosen:
        words = {"variant": offer.variant, "platform": offer.platform, "package": offer.package}
        words |= {name: value for name in ("torch", "cuda") if (value := getattr(offer, name))}
        page.goto(f"{url}/index.html?" + "&".join(f"{name}={value}" for name, value in words.items()))
        lines.append(line_on(page))
        assert lines[-1] == pip_line(f"{offer.package}=={offer.version}", pip_source(workspace, offer.group))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for offer, result in zip(chosen, pool.map(partial(dry_run, tmp_path), lines, chosen), strict=True):
            assert result.returncode == 0, result.stderr
            assert f'"version": "{offer.version}"' in result.stdout


def dry_run(folder, line, offer):
    """What pip would install by this line on the offer's own system."""
    python, abi, system = tag(offer)
    command = [sys.executable, "-m", "pip", *shlex.split(line)[1:], "--dry-run", "--no-deps", "--quiet"]
    command += ["--target", str(folder / "t"), "--only-binary=:all:", "--isolated", "--no-cache-dir"]
    command += ["--platform", system, "--python-version", python[2:], "--abi", abi, "--report", "-"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_every_option_is_reached_and_chosen_by_keyboard(page, served):
    _, url, _ = served
    page.goto(f"{url}/index.html?package=torch")
    groups = page.evaluate("[...new Set([...document.querySelectorAll('input[type=radio]')].map(i => i.name))]")
    assert set(groups) == {"gpu", "cpu", "python", "platform", "package", "torch", "cuda"}
    for name in groups:
        inputs = page.locator(f"input[name={name}]")
        wanted = {inputs.nth(place).get_attribute("value") for place in range(inputs.count())}
        page.locator(f"input[name={name}]:checked").focus()
        seen = set()
        for _ in range(len(wanted)):
            page.keyboard.press("ArrowDown")
            seen.add(page.evaluate("document.activeElement.value"))
            assert page.evaluate("document.activeElement.checked")
        assert seen == wanted
        page.keyboard.press("ArrowDown")
    page.goto(f"{url}/index.html")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"card", "SUMMARY", "A"} <= reached


def test_an_impossible_choice_says_why_in_the_words_of_the_rules(page, served):
    _, url, _ = served
    page.goto(f"{url}/index.html?variant=sm35-avx-py311&platform=linux&package=torch")
    pill = page.locator("label[for='cuda-12.8']")
    why = "CUDA 12.8 cannot compile for sm35 (Kepler, Tesla K40): CUDA 10.2 to 11.8 can"
    assert "off" in pill.get_attribute("class")
    assert pill.get_attribute("title") == why
    pill.click()
    assert why in page.locator("#answer").inner_text()
    page.locator("#answer button").first.click()  # the way out
    assert why not in page.locator("#answer").inner_text()


@pytest.mark.parametrize(
    ("typed", "gpu"),
    [
        ("Tesla K40c", "sm35"),
        ("GTX 1080 Ti", "sm61"),
        ("NVIDIA GeForce RTX 5070", "sm120"),
        ("geforce rtx 3090", "sm86"),
        ("K40", "sm35"),
        ("k40m", "sm35"),
        ("k80", "sm37"),
        ("P40", "sm61"),
        ("T4", "sm75"),
        ("gtx1080", "sm61"),
        ("gtx 1080ti", "sm61"),
        ("rtx3090", "sm86"),
        ("v100", "sm70"),
    ],
)
def test_a_card_is_found_by_its_name(page, served, typed, gpu):
    _, url, _ = served
    page.goto(f"{url}/index.html")
    page.fill("#card", typed)
    assert page.locator("input[name=gpu]:checked").get_attribute("value") == gpu


def test_a_card_that_is_not_known_takes_back_the_choice_before(page, served):
    _, url, _ = served
    page.goto(f"{url}/index.html")
    page.fill("#card", "K40")
    page.fill("#card", "Voodoo 2")
    assert page.locator("#card-said").inner_text().startswith("No such card")
    assert page.locator("input[name=gpu]:checked").get_attribute("value") == ""


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            "GTX 1080 Ti",
            "PyTorch's own wheel of 2.14.1 (the last that does) runs on sm61 (CUDA 12.6, driver 525 or newer): ",
        ),
        (
            "RTX 5090",
            "PyTorch's own wheel of 2.15.0 runs on sm120 (CUDA 13.2, driver 580 or newer): pip ",
        ),
        ("K40", "PyTorch's own wheels: none has code for sm35."),
        # On x86 there is no wheel for its SM: the selector knows by itself that it is beside Arm cores alone.
        ("Jetson Thor", "PyTorch's own wheel of 2.15.0 runs on sm110 (CUDA 13.2, driver 580 or newer): pip "),
        ("GH200", "PyTorch's own wheel of 2.15.0 runs on sm90 (CUDA 13.2, driver 580 or newer): pip "),
    ],
)
def test_it_begins_with_whether_the_official_wheel_runs_on_the_card(page, served, typed, told):
    _, url, _ = served
    page.goto(f"{url}/index.html")
    assert page.locator("#official").inner_text() == ""
    page.fill("#card", typed)
    assert page.locator("#official").inner_text().startswith(told)
    page.fill("#card", "Voodoo 2")
    assert page.locator("#official").inner_text() == ""


def test_the_machine_beside_a_card_is_the_cards_own(page, served):
    _, url, _ = served
    page.goto(f"{url}/index.html")
    page.check("#platform-windows")
    page.fill("#card", "H100")
    page.check("#cpu-avx2")
    assert "runs on sm90" in page.locator("#official").inner_text()
    # An x86 CPU is never beside it.
    page.fill("#card", "GH200")
    assert page.locator("input[name=cpu]:checked").get_attribute("value") == ""
    assert page.locator("#official").inner_text() == "PyTorch publishes no CUDA wheels for windows-aarch64."
    # The architecture alone does not say which card it is.
    page.check("#gpu-any")
    page.check("#gpu-sm90")
    assert "runs on sm90" in page.locator("#official").inner_text()


@pytest.mark.parametrize("typed", ["GH200", "Tesla K40c", "GTX 1080 Ti", "Jetson Thor"])
def test_a_link_keeps_the_card(page, served, typed):
    """GH200 is sm90 as an H100 is, beside Arm cores: a link with the architecture alone gave the answer for x86."""
    _, url, _ = served
    page.goto(f"{url}/index.html")
    page.fill("#card", typed)
    told = page.locator("#official").inner_text(), page.locator("#card-said").inner_text()
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    assert (page.locator("#official").inner_text(), page.locator("#card-said").inner_text()) == told
    page.check("#gpu-any")
    assert "card=" not in page.url


@pytest.mark.parametrize("query", ["card=Voodoo+2", "gpu=sm35&card=GH200"])
def test_a_link_with_a_wrong_card_says_nothing_of_it(page, served, query):
    _, url, _ = served
    page.goto(f"{url}/index.html?{query}")
    assert page.locator("#card-said").inner_text() == ""
    assert page.locator("#card").input_value() == ""


def test_only_published_wheels_are_counted_as_wheels(page, served):
    _, url, _ = served
    page.goto(f"{url}/index.html?gpu=sm35")
    assert re.match(r"(No|\d+) published wheels?$", page.locator("#answer h2").inner_text())
    assert "can be built on request" in page.locator("#answer").inner_text()


NVIDIA_SMI = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |
|-------------------------------+----------------------+----------------------+
|   0  Tesla K40c          Off  | 00000000:03:00.0 Off |                    0 |
"""


def test_what_have_i_got_reads_both_commands(page, served):
    _, url, _ = served
    page.goto(f"{url}/index.html")
    page.locator("summary").click()
    page.fill("#pasted", NVIDIA_SMI)
    assert page.locator("#pasted-said").inner_text() == "Tesla K40c is sm35. Driver 470.82.01."
    page.fill("#pasted", NVIDIA_SMI.replace("470.82.01", "550.54.14"))
    assert "Driver 550.54.14 does not run it: 470 is the last branch" in page.locator("#pasted-said").inner_text()
    page.fill("#pasted", "variant  sm61-avx2-py313\nchannel  main\n")
    assert page.locator("input[name=gpu]:checked").get_attribute("value") == "sm61"
    assert "variant=sm61-avx2-py313" in page.url
    page.fill("#pasted", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert page.locator("#pasted-said").inner_text().startswith("nvidia-smi found no driver that runs.")
    page.fill("#pasted", EVIL)
    assert page.locator("#pasted-said").inner_text() == "No GPU that the farm knows is named there."


CUT_OFF = NVIDIA_SMI.replace("Tesla K40c    ", "NVIDIA GeForce ...")
LSPCI = "a2:00.0 VGA compatible controller: NVIDIA Corporation C61 [GeForce 7025] (rev a2)"


@pytest.mark.parametrize(
    ("pasted", "said"),
    [
        (CUT_OFF, "nvidia-smi has cut off the card's name: paste what `nvidia-smi -L` prints."),
        ("GPU 0: NVIDIA GeForce GTX 780 (UUID: GPU-a2b4c6d8-a2b4)", "GeForce GTX 780 is sm35."),
        (LSPCI, "No GPU that the farm knows is named there."),
        ("GPU 0: Tesla K40c\nGPU 1: Tesla P100", "Tesla K40c is sm35. Tesla P100 (sm60) is named there too."),
    ],
)
def test_what_is_no_name_of_a_card_is_not_taken_for_one(page, served, pasted, said):
    _, url, _ = served
    page.goto(f"{url}/index.html")
    page.locator("summary").click()
    page.fill("#pasted", pasted)
    assert page.locator("#pasted-said").inner_text() == said


def test_hostile_names_do_not_run(page, served):
    _, url, _ = served
    page.goto(f"{url}/farm.html")
    assert page.title() == "The farm: what is built, what waits, and why"
    assert page.locator("img").count() == 0
    assert 'onerror="document.title=1"' in page.locator("#runs ~ .scroll").inner_text()


def test_without_javascript_the_wheels_are_a_table(browser, served):
    _, url, chosen = served
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{url}/index.html")
    assert page.locator("noscript table tbody tr").count() == CHOICES
    assert f"{chosen[0].package}=={chosen[0].version}" in page.locator("noscript table").inner_text()
    context.close()


def test_it_works_from_a_folder(browser, served):
    project, _, chosen = served
    context = browser.new_context()
    page = context.new_page()
    offer = chosen[0]
    page.goto((project / "artifacts" / "index" / "index.html").as_uri() + f"?variant={offer.variant}")
    assert page.locator("#answer h2").inner_text() == offer.variant
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("wide", 1280), ("narrow", 390)])
def test_axe_finds_nothing_and_nothing_sticks_out(browser, served, scheme, name, width):
    _, url, chosen = served
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    paths = [f"index.html?variant={chosen[0].variant}&cuda=12.8", f"index.html?variant={chosen[0].variant}"]
    # Thousands of elements, on which axe works for half a minute: each width and each scheme once.
    if (name, scheme) in (("wide", "light"), ("narrow", "dark")):
        paths.append("farm.html")
    for path in paths:
        page.goto(f"{url}/{path}")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.screenshot(path=SCREENSHOTS / f"{path.partition('.')[0]}-{name}-{scheme}.png", full_page=True)
    context.close()
