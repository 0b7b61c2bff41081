"""What is proved of channels: of exactly the builds that an entry names, and of nothing else."""

import json
import re
from pathlib import Path

import pytest
import yaml

from farm.base.errors import UsageError
from farm.cli.main import main
from farm.plan.evidence import FILE, Evidence, load_evidence
from farm.plan.matrix import load_matrix
from tests.plans import plan_of
from tools.channel_table import OUT, table, written

ROOT = Path(__file__).parents[3]
PROVED = "sm35-avx-py311"


def plan(variant=PROVED, package="torch", channel=None, **options):
    return plan_of(variant, package, channel, **options)


def on_bookworm(plan):
    """The plan of the channel before its base became an older one."""
    return plan.model_copy(update={"base": "debian-bookworm"})


def test_a_wheel_of_one_base_is_no_proof_of_another():
    evidence = Evidence(
        tuple(wheel for wheel in load_evidence(ROOT).wheels if wheel.base == "debian-bookworm")
    )
    assert evidence.of(on_bookworm(plan()))
    assert evidence.of(plan()) == []
    [(what, text, page)] = evidence.rows(plan())
    assert (what, page) == ("not tested", "docs/evidence/torch-2.6.0-whole.md")
    assert text.startswith("on debian-bullseye; on debian-bookworm, 2026-11-27: built and run in")
    # Without a base in the entry, the channel never had another.
    anywhere = evidence.of(on_bookworm(plan()))[0].model_copy(update={"base": None})
    assert Evidence((anywhere,)).of(plan()) == [anywhere]


def whats(rows):
    return [what for what, _, _ in rows]


def test_the_default_of_a_k40_on_linux_has_run_on_a_card():
    proved = load_evidence(ROOT).of(on_bookworm(plan()))
    assert {wheel.channel for wheel in proved} == {"debian-2.6.0"}
    tested = "built and run in part on NVIDIA H200 (sm_90), by JIT of its PTX, not its machine code"
    assert tested in [wheel.state for wheel in proved]
    assert tested in [wheel.state for wheel in load_evidence(ROOT).of(plan())]
    assert (
        load_evidence(ROOT)
        .rows(on_bookworm(plan(without="kineto")))[0][1]
        .startswith("without kineto; with it, 2026-11-27: ")
    )


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("sm50-avx-py311", {"torch": "2.6"}),
        ("sm37-avx-py311", {"ptx": False}),
        ("sm35-avx2-py311", {"ptx": True}),
        (PROVED, {"cudnn": None}),
        (PROVED, {"cuda_libraries": "vendored"}),
        (PROVED, {"rebuild": 1}),
    ],
)
def test_what_differs_from_the_entry_is_not_proved(variant, options):
    rows = load_evidence(ROOT).rows(plan(variant, **options))
    assert whats(rows) == ["not tested"]
    what, named = rows[0][1].split("; of its channel were tested: ")
    assert what == "this build"
    assert named.startswith("sm35-avx-py311")
    # One build may be proved several times, by wheels of several days: it is named once for each
    # card.
    proofs = re.split(r"\), (?=sm|cpu)", named)
    assert len(proofs) == len(set(proofs))


def test_a_channel_without_an_entry_is_planned():
    rows = load_evidence(ROOT).rows(plan("sm61-avx2-py313", channel="main"))
    assert rows == [
        ("not tested", "no build of torch from channel main has been run to its end", FILE)
    ]


def test_every_entry_is_of_a_build_that_can_be_planned_and_its_page_is_there_and_has_its_hash():
    for wheel in load_evidence(ROOT).wheels:
        options = dict(wheel.options)
        rebuild = wheel.version.rpartition(".")[2]
        if (
            rebuild.isdigit()
            and wheel.package == "canary"
            and not wheel.version.endswith(".armv8.2")
        ):
            options["rebuild"] = int(rebuild)
        offered = load_matrix(ROOT).channels[wheel.channel].builds
        assert (wheel.package, wheel.variant) in {
            (build.package, str(build.variant)) for build in offered
        }
        built = plan(wheel.variant, wheel.package, wheel.channel, **options)
        built = built.model_copy(update={"base": wheel.base or built.base})
        assert wheel in load_evidence(ROOT).of(built), wheel
        page = (ROOT / wheel.page).read_text(encoding="utf-8")
        assert wheel.sha256 is None or wheel.sha256 in page
        assert wheel.built.date in page


def test_two_builds_that_left_out_different_things_are_not_called_wholly_tested():
    plan = on_bookworm(plan_of("sm35-avx-py311", channel="debian-2.6.0"))
    wheel = load_evidence(ROOT).of(plan)[0]
    both = (
        wheel.model_copy(update={"not_run": [text]}) for text in ("any card", "a card with sm_35")
    )
    assert Evidence(tuple(both)).rows(plan)[-1][:2] == ("not tested", "any card")


def test_plan_and_why_print_it(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["plan", "--variant", PROVED]) == 0
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert re.search(r"cost about 9.2 CPU hours: about .* here, with \d+ compilers at a time", text)
    assert "20 GB for the build" in text
    assert "FBGEMM" in text
    assert "by JIT of its PTX" in text
    assert "not tested a card with sm_35" in text
    assert "driver 450.80.02 or newer, up to branch 470" in text
    assert "next farm submit --variant sm35-avx-py311" in text
    assert "warning" not in text  # PTX that comes with the channel is for --all
    assert len(out.splitlines()) <= 24
    assert "TORCH_CUDA_ARCH_LIST" not in out
    assert main(["plan", "--variant", PROVED, "--all"]) == 0
    out = capsys.readouterr().out
    assert "stand-ins for CUDA's libraries" in out
    assert "TORCH_CUDA_ARCH_LIST" in out
    assert main(["why", "--variant", PROVED, "--json"]) == 0
    assert (
        whats(row.values() for row in json.loads(capsys.readouterr().out)["evidence"])[0]
        == "tested"
    )
    assert main(["why", "--variant", "sm75-avx2-py313", "--channel", "main"]) == 0
    assert "no build of torch from channel main has been run to its end" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["plan", "--variant", PROVED]) == 0
    assert (
        max(map(len, capsys.readouterr().out.splitlines())) <= 80 < max(map(len, out.splitlines()))
    )


def test_a_channel_of_ones_own_takes_no_proof_from_one_of_the_same_name(tmp_path):
    assert load_evidence(tmp_path).wheels == load_evidence(ROOT).wheels
    (tmp_path / "ci").mkdir()
    text = yaml.safe_load((ROOT / "ci" / "matrix.yaml").read_text(encoding="utf-8"))
    own = {"defaults": True, "channels": {"debian-2.6.0": text["channels"]["debian-2.6.0"]}}
    (tmp_path / "ci" / "matrix.yaml").write_text(yaml.safe_dump(own))
    everything = {wheel.channel for wheel in load_evidence(ROOT).wheels}
    assert "debian-2.6.0" in everything
    assert {wheel.channel for wheel in load_evidence(tmp_path).wheels} == everything - {
        "debian-2.6.0"
    }
    (tmp_path / FILE).write_text("wheels: [{channel: x, chanel: y}]")
    with pytest.raises(UsageError, match="unknown key"):
        load_evidence(tmp_path)


def test_the_table_on_the_page_is_that_of_the_evidence():
    text = OUT.read_text(encoding="utf-8")
    assert table() in text
    assert written(text) == text, "run `make generate`"
    row = next(row for row in table().splitlines() if row.startswith("| `debian-2.6.0` | torch "))
    assert row.count("`sm35-avx-py311`") == 1
    built = "`cpu-avx2-py311`, `cpu-avx-py311`, `cpu-sse41-py311`, `cpu-avx512bf16-py311`"
    assert f"{built} built and run without a card" in row  # said once for all
