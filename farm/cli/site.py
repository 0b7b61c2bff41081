"""`farm site build`: the pages beside the index."""

import argparse
import json
from pathlib import Path

from farm.cli.project import project_of
from farm.errors import UsageError
from farm.index.stores import open_store
from farm.pipeline.release import pip_links, pip_source, public_url
from farm.pipeline.report import Silent
from farm.pipeline.setting import Setting, open_journal
from farm.site import build
from farm.site.offers import offers
from farm.site.state import Known, runs, wheels


def cmd_site_build(args: argparse.Namespace) -> int:
    """Build the site from the matrix, the index and the journal; write what changed."""
    project, settings = project_of(args)
    setting = Setting(project, settings, Silent())
    store = open_store(setting.index_url)
    with open_journal(project, setting.settings) as journal:
        known = Known.of(wheels(store), runs(journal, setting.artifacts / "runs"))
    made = build.files(
        list(offers(project)),
        known,
        source=lambda group: pip_source(setting, group),
        links=lambda group: pip_links(setting, group),
        root=public_url(setting, ""),
    )
    if args.output:
        _to_folder(args.output, made)
        changed, where = list(made), str(args.output)
    else:
        changed, where = list(build.write(store, made).changed), public_url(setting, "index.html")
    if args.json:
        print(json.dumps({"files": len(made), "changed": changed, "where": where}, indent=2))
    else:
        print(f"{len(made)} files, {len(changed)} changed: {where}")
    return 0


def _to_folder(folder: Path, made: dict[str, bytes]) -> None:
    try:
        for key, data in made.items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from error
