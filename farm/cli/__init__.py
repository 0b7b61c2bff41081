# `main` finds the command among the arguments and imports its module alone; `options` and
# `selection` hold what commands share, `show` prints. A command calls the layers below and prints
# what they return. Imports of a command are inside of its functions where they take long: parsing,
# `--help` and completion need none.
