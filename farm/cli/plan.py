"""`farm plan`: the resolved build, each value with its origin, and what has been proved of it."""

import argparse
import json

from farm.cli.options import add_selectors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selectors(parser)


def run(args: argparse.Namespace) -> int:
    from farm import catalog
    from farm.cli import show
    from farm.cli.selected import plan_of
    from farm.plan.evidence import load_evidence
    from farm.platforms.registry import platform

    project, _, plan = plan_of(args)
    if args.json:
        print(plan.to_json(), end="")
        return 0
    data = json.loads(plan.to_json())
    env, options, origins = data.pop("env"), data.pop("options"), data.pop("origins")
    rows = [("channel", plan.channel, origins["channel"])]
    rows += [(name, "" if value is None else str(value), origins[name]) for name, value in options.items()]
    if plan.base:
        glibc = catalog.debian_releases()[plan.base].glibc
        rows.append(
            ("base", plan.base, f"glibc {glibc}: runs on {', '.join(catalog.reach(plan.base)) or 'newer ones'}")
        )
    if plan.python:
        rows.append(("python", f"{plan.python.version} from python-build-standalone", origins["python"]))
    rows += load_evidence(project).rows(plan)
    rows += [("not pinned", text, f"docs/{plan.platform}.md") for text in platform(plan.platform).floating(plan)]
    rows += [(f"env {key}", value, origins[f"env.{key}"]) for key, value in env.items()]
    show.table(f"{plan.package} {plan.version} (plan {plan.digest[:12]})", ("what", "value", "origin"), rows)
    return 0
