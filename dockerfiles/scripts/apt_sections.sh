#!/bin/sh
# Lets apt see contrib and non-free, where Debian keeps CUDA; both spellings of the source lists. Other distributions
# have no such sections: their lists stay as they are.
set -eu
[ "$(. /etc/os-release && echo "$ID")" = debian ] || exit 0
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources; do
    [ -f "$f" ] || continue
    sed -i -e '/^deb /s/ main.*$/ main contrib non-free/' -e 's/^Components: main.*$/Components: main contrib non-free/' "$f"
done
