"""`farm repair`: in a module of its own, since it takes less time than the imports of the other commands."""

import argparse
import gc

from farm.text import plain
from farm.wheel.repair import opened, repair


def cmd_repair(args: argparse.Namespace) -> int:
    """Write the repaired wheel, and say what was done."""
    gc.disable()  # ten thousand members make no cycles, but would be searched for them again and again
    args.output.mkdir(parents=True, exist_ok=True)
    opens = opened(args.lib_dir, args.opens)
    given = {"exclude": args.exclude, "version": args.new_version, "requires": args.require, "opens": opens}
    if args.into is None:
        from farm.wheel.tools import repair_by_tools

        result = repair_by_tools(args.wheel, args.output, lib_dirs=args.lib_dir, **given)
    else:
        result = repair(args.wheel, args.output, lib_dirs=args.lib_dir, vendor_into=args.into, **given)
    if args.json:
        import json

        print(json.dumps(result.to_json(), indent=2))
        return 0
    for item in result.vendored:
        print(plain(f"added {item.path} from {item.source}"))
    for path in result.record_corrected:
        print(plain(f"corrected the hash of {path} in RECORD"))
    print(plain(str(result.wheel)))
    gc.freeze()  # nor is there anything to be found at the end
    return 0
