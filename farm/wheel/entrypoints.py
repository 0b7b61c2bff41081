"""entry_points.txt, as installers read it: the commands that it makes, and what is wrong with it.

Source: PyPA, "Entry points specification".
"""

import configparser
import re

from farm.base.text import printable

_SCRIPTS = ("console_scripts", "gui_scripts")
_GROUP = re.compile(r"\w+(\.\w+)*")
_NAME = re.compile(r"[\w.-]+")  # what the specification recommends; of scripts it is demanded: it becomes a file's name
_OBJECT = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*)(?P<attr>\s*:\s*[^\W\d]\w*(\.[^\W\d]\w*)*)?")
_EXTRAS = re.compile(r"\s*\[\s*([\w.-]+\s*(,\s*[\w.-]+\s*)*)?\]\s*$")
_MAX_ENTRIES = 10_000


def read_entry_points(content: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names of commands, what is wrong)."""
    # As the specification has it: `=` alone, and names keep their case.
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        text = content.decode("utf-8")
        parser.read_string(text, "entry_points.txt")
    except (UnicodeDecodeError, configparser.Error, ValueError) as error:
        return (), (f"cannot be read: {printable(str(error).partition(chr(10))[0])}",)
    wrong: list[str] = []
    names: list[str] = []
    entries = [(group, name, value) for group in parser.sections() for name, value in parser.items(group)]
    if len(entries) > _MAX_ENTRIES:
        return (), (f"more than {_MAX_ENTRIES} entries",)
    # pip reads it by importlib.metadata, for which a line is a comment (#), a group or an entry, and nothing else.
    for line in filter(None, map(str.strip, text.splitlines())):
        if not (line.startswith("#") or "=" in line or (line[0] == "[" and line[-1] == "]")):
            wrong.append(f"cannot be read by pip: {line[:80]!r}")
    if parser.defaults():
        wrong.append("a group is called DEFAULT")
    wrong += [f"{group[:80]!r} is not a valid group name" for group in parser.sections() if not _GROUP.fullmatch(group)]
    for group, name, value in entries:
        found = _OBJECT.fullmatch(_EXTRAS.sub("", value).strip())
        if not found:
            wrong.append(f"{name[:80]!r} = {value[:80]!r} names no object (module:attribute)")
        elif group in _SCRIPTS and not found["attr"]:
            wrong.append(f"command {name[:80]!r} = {value[:80]!r} names no function (module:function)")
        if group in _SCRIPTS:
            names.append(name)
            if not _NAME.fullmatch(name) or not name.strip("."):
                wrong.append(f"command {name[:80]!r}: its name is none for a file")
        elif not name or name[0] in "[=" or name != name.strip():
            wrong.append(f"{name[:80]!r} is not a valid entry point name")
    return tuple(names), tuple(map(printable, wrong))
