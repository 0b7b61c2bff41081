"""`farm completion`: what a shell needs to complete commands, options and words."""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SHELLS = ("bash", "zsh", "fish")
LISTS = ("variants", "channels", "packages", "runs")
LISTED = {"--variant": "variants", "--channel": "channels", "--package": "packages", "run": "runs"}
"""Options and positional arguments whose words depend on the project: the shell asks the farm for them."""
RUNS = 50
"""Of the newest runs the ids are offered."""
BASH = """\
# farm completion: eval "$(farm completion bash)", or put it into /etc/bash_completion.d/farm
_farm() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= each i
    # bash splits --variant=sm35 at the sign.
    if [ "$word" = = ]; then word=; elif [ "$before" = = ]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
    # By number: zsh has no such slices of an array.
    for ((i = 1; i < COMP_CWORD; i++)); do
        each=${{COMP_WORDS[i]}}
        case "{names}" in *"|${{command:+$command }}$each|"*) command="${{command:+$command }}$each" ;; esac
    done
    case "$command $before" in
{words}
    esac
    case "$command" in
{commands}
    esac
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -F _farm farm
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("shell", choices=SHELLS, nargs="?")
    asked.add_argument("--list", choices=LISTS, help="print the words that this project offers, one a line")


def run(args: argparse.Namespace) -> int:
    from farm.cli.help import PAGES, sections
    from farm.cli.main import COMMANDS, command_parser, parser

    if args.list:
        print("".join(f"{word}\n" for word in listed(args.list, args.project or Path.cwd())), end="")
        return 0
    top = parser()
    known = {"": [Word("", "", list(COMMANDS)), *_words(top)]}
    for name in COMMANDS:
        known |= dict(_commands(name, command_parser(top, name)))
    known["help"].append(Word("", "", list(dict.fromkeys([*sections(), *PAGES, *COMMANDS]))))
    if args.shell == "fish":
        print(fish(known, COMMANDS), end="")
    else:
        # zsh runs bash's completions with this function of its own.
        head = "autoload -U +X bashcompinit && bashcompinit\n" if args.shell == "zsh" else ""
        print(head + bash(known), end="")
    return 0


def listed(kind: str, folder: Path) -> Iterable[str]:
    """The variants, channels, packages or newest runs of a project."""
    from farm.base.project import find_project
    from farm.plan.matrix import load_matrix

    project = find_project(folder)
    if kind == "runs":
        from farm.plan.settings import load_settings
        from farm.run.workspace import journal_path, open_journal

        settings = load_settings(project)
        if not journal_path(project, settings).is_file():
            return []
        with open_journal(project, settings) as journal:
            return [run.id for run in journal.runs(RUNS)]
    matrix = load_matrix(project)
    if kind == "channels":
        return sorted(matrix.channels)
    builds = matrix.builds(None)
    return sorted({str(build.variant) if kind == "variants" else build.package for build in builds})


class Word(NamedTuple):
    """What may stand in a command line.

    Attributes:
        option: `--channel`; empty for a positional argument.
        text: Its help.
        words: What it takes.
        list: The list of `LISTS` that it takes a word of, if any.
        file: It takes a value of which nothing is known: files are offered.
    """

    option: str
    text: str
    words: list[str]
    list: str | None = None
    file: bool = False


Known = Mapping[str, list[Word]]
"""By command: `submit`, `index check`; the empty one is `farm` itself."""


def _commands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[Word]]]:
    yield name, list(_words(parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from _commands(f"{name} {word}", below)


def _words(parser: argparse.ArgumentParser) -> Iterator[Word]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        words = [str(choice) for choice in action.choices or ()]
        names = [name for name in action.option_strings if name.startswith("--")]
        text = " ".join((action.help or "").split())
        # A positional argument with choices, such as `farm site build`: its words are offered like options.
        if not action.option_strings and (words or action.dest in LISTED):
            yield Word("", "", words, LISTED.get(action.dest))
        for name in names:
            known = bool(words or name in LISTED)
            yield Word(name, text, words, LISTED.get(name), file=not known and action.nargs not in (0, "?"))


def bash(known: Known) -> str:
    """For bash, and for zsh with bashcompinit."""
    values, commands = [], []
    for command, words in known.items():
        for word in words:
            if word.option and (word.words or word.list or word.file):
                reply = 'COMPREPLY=($(compgen -f -- "$word"))' if word.file else _reply(word.words, word.list)
                values.append(f'    "{command} {word.option}") {reply}; return ;;')
        offered = [one.option for one in words if one.option]
        offered += [text for one in words if not one.option for text in one.words]
        lists = next((one.list for one in words if not one.option and one.list), None)
        commands.append(f'    "{command}") {_reply(offered, lists)} ;;')
    names = "|" + "|".join(known) + "|"
    return BASH.format(words="\n".join(values), commands="\n".join(commands), names=names)


def _reply(words: list[str], asked: str | None) -> str:
    more = [f"$(farm completion --list {asked} 2>/dev/null)"] if asked else []
    return f'COMPREPLY=($(compgen -W "{" ".join([*words, *more])}" -- "$word"))'


def fish(known: Known, texts: Mapping[str, str]) -> str:
    """For fish: `farm completion fish > ~/.config/fish/completions/farm.fish`."""
    # Not fish's own `__fish_use_subcommand`, which takes the value of `--project` for a command.
    lines = [f"function __farm_before_command; not __fish_seen_subcommand_from {' '.join(texts)}; end"]
    lines += ["complete -c farm -n __farm_before_command -f"]
    lines += [f"complete -c farm -n __farm_before_command -a {name} -d {_quoted(text)}" for name, text in texts.items()]
    for command, words in known.items():
        # Of `index check` and `index`, which has that word, it is the first.
        seen = [f"__fish_seen_subcommand_from {word}" for word in command.split()] or ["__farm_before_command"]
        below = [name.removeprefix(f"{command} ") for name in known if command and name.startswith(f"{command} ")]
        if below:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
        for word in words:
            if not command and not word.option:
                continue  # the commands, which have their texts above
            option = f" -l {word.option[2:]} -d {_quoted(word.text)}" if word.option else " -f"
            offered = [*word.words, *([f"(farm completion --list {word.list} 2>/dev/null)"] if word.list else [])]
            given = f" -x -a {_quoted(' '.join(offered))}" if offered else " -r -F" if word.file else ""
            lines.append(f"complete -c farm -n '{'; and '.join(seen)}'{option}{given}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
