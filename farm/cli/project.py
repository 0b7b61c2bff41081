"""The checkout that a command is about."""

import argparse
from pathlib import Path

from farm.settings import Settings, find_project, load_settings


def project_of(args: argparse.Namespace) -> tuple[Path, Settings]:
    """The checkout and its settings."""
    project = find_project(args.project or Path.cwd())
    return project, load_settings(project)
