# `probe` is the program that tests an installed wheel: it runs in the wheel's environment and needs
# nothing else here. `environment` makes that environment, `runner` runs the probe there and reports
# what it found.
