"""`farm repair`: in a module of its own, since it takes less time than the imports of the other commands."""

import argparse
import gc

from farm.text import plain
from farm.wheel.repair import RepairOptions, repair


def cmd_repair(args: argparse.Namespace) -> int:
    """Write the repaired wheel, and say what was done."""
    gc.disable()  # ten thousand members make no cycles, but would be searched for them again and again
    args.output.mkdir(parents=True, exist_ok=True)
    options = RepairOptions(
        lib_dirs=args.lib_dir,
        into=args.into,
        exclude=args.exclude,
        version=args.new_version,
        requires=args.require,
        opens=args.opens,
    )
    result = repair(args.wheel, args.output, options)
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
