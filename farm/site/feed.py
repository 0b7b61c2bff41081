"""An Atom feed of new wheels (RFC 4287)."""

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree as ET

from farm.site.state import Wheel

NAMESPACE = "http://www.w3.org/2005/Atom"
ENTRIES = 50


def feed(wheels: Iterable[Wheel], tested: Mapping[str, str], root: str) -> bytes:
    """The newest wheels first; ids follow from their hashes, so that a reader never sees one twice.

    `tested`: by file name what was tested of it, in words.
    """
    newest = sorted(wheels, key=lambda wheel: (wheel.uploaded, wheel.filename), reverse=True)[:ENTRIES]
    ET.register_namespace("", NAMESPACE)
    top = ET.Element(f"{{{NAMESPACE}}}feed")
    _text(top, "title", "New PyTorch wheels of the farm")
    _text(top, "id", root)
    # The newest wheel's time, not today's: the same wheels give the same bytes, and readers fetch nothing anew.
    _text(top, "updated", newest[0].uploaded if newest else "1970-01-01T00:00:00Z")
    ET.SubElement(ET.SubElement(top, f"{{{NAMESPACE}}}author"), f"{{{NAMESPACE}}}name").text = "the farm"
    ET.SubElement(top, f"{{{NAMESPACE}}}link", {"rel": "self", "href": f"{root}feed.xml"})
    for wheel in newest:
        entry = ET.SubElement(top, f"{{{NAMESPACE}}}entry")
        _text(entry, "title", f"{wheel.project} {wheel.version}")
        # By content: an address may change, and a reader would show the wheel once more.
        _text(entry, "id", f"urn:sha256:{wheel.sha256}")
        _text(entry, "updated", wheel.uploaded)
        words = f"; {tested[wheel.filename]}" if wheel.filename in tested else ""
        _text(entry, "summary", f"{wheel.filename}, {wheel.size / 1e6:.1f} MB{words}")
        ET.SubElement(entry, f"{{{NAMESPACE}}}link", {"href": f"{root}index.html"})
    data: bytes = ET.tostring(top, encoding="utf-8", xml_declaration=True)
    return data


def _text(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, f"{{{NAMESPACE}}}{name}").text = text
