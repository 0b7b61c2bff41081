"""Is this machine fit to build, to smoke-test and to use the wheels? What is missing, and how to get it."""
