"""`farm completion`: what a shell needs to complete commands, options and words."""

import argparse
from collections.abc import Iterator, Mapping

SHELLS = ("bash", "zsh", "fish")
BASH = """\
# farm completion: eval "$(farm completion bash)", or put it into /etc/bash_completion.d/farm
_farm() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command= each
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $each in -*) ;; *) command=$each; break ;; esac
    done
    case "$command ${{COMP_WORDS[COMP_CWORD-1]}}" in
{words}
    esac
    case "$command" in
{commands}
    *) COMPREPLY=($(compgen -W "{names}" -- "$word")) ;;
    esac
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -F _farm farm
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    from farm.cli.main import COMMANDS, command_parser, parser

    top = parser()
    options = {name: list(_options(command_parser(top, name))) for name in COMMANDS}
    if args.shell == "fish":
        print(fish(options, COMMANDS), end="")
    else:
        # zsh runs bash's completions with this function of its own.
        head = "autoload -U +X bashcompinit && bashcompinit\n" if args.shell == "zsh" else ""
        print(head + bash(options), end="")
    return 0


Options = list[tuple[str, str, list[str]]]
"""Option, help and the words that it takes; a positional argument has an empty name."""


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, list[str]]]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        words = [str(choice) for choice in action.choices or ()]
        names = [name for name in action.option_strings if name.startswith("--")]
        # A positional argument with choices, such as `farm site build`: its words are offered like options.
        if not action.option_strings and words:
            yield "", "", words
        for name in names:
            yield name, " ".join((action.help or "").split()), words


def bash(options: dict[str, Options]) -> str:
    """For bash, and for zsh with bashcompinit."""
    words, commands = [], []
    for command, known in options.items():
        for name, _, choices in known:
            if name and choices:
                reply = f'COMPREPLY=($(compgen -W "{" ".join(choices)}" -- "$word")); return'
                words.append(f'    "{command} {name}") {reply} ;;')
        offered = " ".join(
            [name for name, _, _ in known if name] + [w for name, _, ws in known if not name for w in ws]
        )
        commands.append(f'    {command}) COMPREPLY=($(compgen -W "{offered}" -- "$word")) ;;')
    return BASH.format(words="\n".join(words), commands="\n".join(commands), names=" ".join(options))


def fish(options: dict[str, Options], texts: Mapping[str, str]) -> str:
    """For fish: `farm completion fish > ~/.config/fish/completions/farm.fish`."""
    lines = ["complete -c farm -n __fish_use_subcommand -f"]
    for command, known in options.items():
        lines.append(f"complete -c farm -n __fish_use_subcommand -a {command} -d {_quoted(texts[command])}")
        for name, text, words in known:
            option = f" -l {name[2:]} -d {_quoted(text)}" if name else " -f"
            given = f" -x -a {_quoted(' '.join(words))}" if words else ""
            lines.append(f"complete -c farm -n '__fish_seen_subcommand_from {command}'{option}{given}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
