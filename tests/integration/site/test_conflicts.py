"""Pairs of choices that exclude each other: each has the rules' reason, and none is in an offer."""

from dataclasses import replace

from farm.site.conflicts import conflicts


def test_reasons_are_those_of_the_rules(offered):
    found = {(c.axis, c.value, c.other_axis, c.other_value): c.why for c in conflicts(offered)}
    assert found["gpu", "sm35", "cuda", "12.8"] == (
        "CUDA 12.8 cannot compile for sm35 (Kepler, Tesla K40): CUDA 10.2 to 11.8 can"
    )
    assert "there is no CUDA for macOS" in found["gpu", "sm61", "platform", "macos"]
    assert "avx2 is for x86_64" in found["cpu", "avx2", "platform", "macos"]


def test_what_is_offered_is_no_conflict(offered):
    for conflict in conflicts(offered):
        joined = [o for o in offered if getattr(o, conflict.axis) == conflict.value and o.package == "torch"]
        assert conflict.other_value not in {getattr(offer, conflict.other_axis) for offer in joined if offer.torch}


def test_a_pair_that_only_the_channels_leave_out_is_no_conflict(offered):
    """A rule must forbid it: that nobody offers it is another reason."""
    some = [o for o in offered if o.channel == "main" and o.package == "torch" and o.gpu in ("sm75", "sm80")]
    some = [o for o in some if (o.gpu, o.cpu) != ("sm75", "avx2")]
    pairs = {(c.value, c.other_value) for c in conflicts(some)}
    assert ("sm75", "avx2") not in pairs
    assert ("sm75", "12.8") not in {(c.value, c.other_value) for c in conflicts([replace(o) for o in some])}
