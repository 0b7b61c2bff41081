# `probe` is the program that tests an installed wheel: it runs in the wheel's environment and needs nothing else here.
# `environment` makes that environment, `runner` runs the probe there, `report` reads what it
# found; `farm.wheel.explain` explains it.
