"""Ctrl-C held back: it counts at the end of the block, a second one at once."""

import os
import signal
import threading

import pytest

from farm.base.interrupts import deferred_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_is_raised_at_the_end_of_the_deferred_block(number):
    def interrupt(*_):
        raise KeyboardInterrupt

    reached = []

    def interrupted():
        with deferred_interrupts():
            os.kill(os.getpid(), number)
            reached.append("the end")
        reached.append("behind it")

    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert reached == ["the end"]
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)


def test_a_second_interrupt_is_raised_at_once():
    reached = []

    def interrupted():
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            reached.append("first")
            signal.raise_signal(signal.SIGINT)
            reached.append("second")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["first"]
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_pass_through_and_ignored_signals_stay_ignored():
    def fail():
        with deferred_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
            raise ValueError("reason")

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` has it
    try:
        with pytest.raises(ValueError, match="reason"):
            fail()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_interrupts_are_not_deferred_in_other_threads():
    seen = []

    def work():
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
