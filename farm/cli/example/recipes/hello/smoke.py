"""Run in a fresh environment with the wheel installed; a failed assertion fails the smoke test."""

import hello

assert hello.add(2, 3) == 5
