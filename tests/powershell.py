"""PowerShell by its grammar (tree-sitter): no package that can be had here holds PowerShell
itself.
"""

import re

import tree_sitter_powershell
from tree_sitter import Language, Parser

PARSER = Parser(Language(tree_sitter_powershell.language()))
# A word of these letters is handed on as it stands; so is a number, which `-3.11` is to the
# grammar.
PLAIN = r"[\w\\/:.=+-]+"
WORDS = {"command_name": PLAIN, "generic_token": PLAIN, "command_parameter": PLAIN}
WORDS["array_literal_expression"] = r"-\d+\.\d+"


def reads(text: str) -> bool:
    return not PARSER.parse(text.encode()).root_node.has_error


def started(line: str) -> list[str]:
    """The program that PowerShell starts for a line, and its arguments; only a line of plain words
    has them.
    """
    assert reads(line), line
    node = PARSER.parse(line.encode()).root_node
    while node.type != "command":
        [node] = node.children  # one statement, one command
    parts = [part for each in node.children for part in (each.children or [each])]
    parts = [part for part in parts if part.type != "command_argument_sep"]
    words = [part.text.decode() for part in parts]
    for part, word in zip(parts, words, strict=True):
        assert re.fullmatch(WORDS.get(part.type, "nothing else"), word), (line, part.type, word)
    assert " ".join(words) == line
    return words
