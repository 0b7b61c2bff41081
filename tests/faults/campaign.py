"""Publishers under harm, counted. `tests/bench/faults.py` runs all,
`tests/e2e/servers/test_faults.py` a part.
"""

import copy
import gzip
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import urlsplit

from farm.index import pages
from farm.index.check import check
from farm.index.layout import CATALOGUE
from farm.index.pages import CATALOGUE_TYPE, parse_catalogue
from farm.index.publish import check_store
from farm.index.s3 import S3Store
from farm.index.store_urls import open_store
from farm.index.stores import Store, swap
from tests.faults.publisher import GROUP
from tests.indexes.wheels import build_wheel
from tests.servers.buckets import ISOLATED, KEYS
from tests.servers.process import ROOT
from tests.servers.proxy import proxy, seeded

PROJECT = "canary"
RUNS = 12
"""How often a publisher that was harmed is run again before the harm ends."""


def make_wheel(folder: Path, number: int, *, size: int = 0) -> Path:
    """A small wheel, or one of about `size` bytes that do not compress."""
    name = f"{PROJECT}-1.0.{number}+cu118.sm35.avx-py3-none-any.whl"
    return build_wheel(folder, name, random.Random(number).randbytes(size)).path


class Publishers:
    """Starts publishing processes by way of `tests.faults.publisher`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self._messages: dict[int, dict] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            news = json.loads(line)
            with self._news:
                self._messages.setdefault(news.pop("id"), {}).update(news)
                self._news.notify_all()

    def _wait(self, number: int, word: str):
        with self._news:
            came = self._news.wait_for(lambda: word in self._messages.get(number, {}), timeout=300)
            assert came, f"publisher {number} said nothing for 300 s"
            return self._messages[number][word]

    def start(self, url: str, *wheels: Path, **options: int) -> int:
        """Starts a publisher; gives its number."""
        assert self._process.stdin
        number = next(self._numbers)
        with self._lock:
            self._process.stdin.write(
                json.dumps({"id": number, "url": url, "wheels": [*map(str, wheels)], **options})
                + "\n"
            )
            self._process.stdin.flush()
        return number

    def pid(self, number: int) -> int:
        return self._wait(number, "pid")

    def end(self, number: int) -> tuple[int, str]:
        """Exit code (negative: the signal) and what it said."""
        return self._wait(number, "code"), self._messages[number]["error"]

    def run(self, url: str, *wheels: Path, **options: int) -> tuple[int, str]:
        return self.end(self.start(url, *wheels, **options))


@contextmanager
def publishers() -> Iterator[Publishers]:
    command = [sys.executable, "-m", "tests.faults.publisher"]
    env = {**os.environ, **KEYS, **ISOLATED, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, cwd=ROOT, text=True, **pipes) as process:
        try:
            yield Publishers(process)
        finally:
            process.stdin.close()


@dataclass
class Count:
    """What came of a campaign; all lists should be empty."""

    rounds: int = 0
    requests: int = 0
    inconsistent: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    wiped: list[str] = field(default_factory=list)
    harms: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return not (self.inconsistent or self.lost or self.duplicates or self.wiped)

    def __str__(self) -> str:
        bad = {
            name: getattr(self, name) for name in ("inconsistent", "lost", "duplicates", "wiped")
        }
        words = [f"{self.rounds} rounds, {self.requests} requests"]
        words += [
            f"{len(found)} {name}" + (f" ({'; '.join(found[:3])})" if found else "")
            for name, found in bad.items()
        ]
        words += [f"harms {sum(self.harms.values())}"] if self.harms else []
        return ", ".join(words) + f", publishers' exit codes {dict(self.outcomes)}"

    def read(self, store: Store, where: str, wanted: list[str], *, finished: bool) -> None:
        """What a reader finds: nothing broken, and when all is finished each wheel exactly once."""
        for problem in check(store):
            if problem.broken or finished:
                self.inconsistent.append(f"{where}: {problem.key} {problem.what}")
        found = store.get(pages.json_key(GROUP, PROJECT))
        names = [file["filename"] for file in json.loads(found.data)["files"]] if found else []
        self.duplicates += [f"{where}: {name}" for name in set(names) if names.count(name) > 1]
        self.lost += [f"{where}: {name}" for name in wanted if name not in names]


def _inside(url: str, name: str) -> str:
    """The same store with a prefix of its own."""
    place, _, query = url.partition("?")
    return f"{place}/{name}" + (f"?{query}" if query else "")


def _through(url: str, server: str) -> str:
    place, _, query = url.partition("?")
    options = [part for part in query.split("&") if not part.startswith("endpoint_url=")]
    return f"{place}?{'&'.join([f'endpoint_url={server}', *options])}"


def _endpoint(url: str) -> str:
    return next(
        part for part in url.partition("?")[2].split("&") if part.startswith("endpoint_url=")
    ).partition("=")[2]


def _known(url: str, through: str) -> Store:
    """The store at `url`, counting as proved also for those who come through a proxy."""
    store = _opened(url)
    seen = store.url("").replace(_endpoint(url), _endpoint(through))
    tried = hashlib.sha256(seen.encode()).hexdigest()

    def note(old: bytes | None) -> bytes:
        return parse_catalogue(old).model_copy(update={"tried": tried}).render()

    swap(store, CATALOGUE, note, CATALOGUE_TYPE)
    return store


def _opened(url: str) -> S3Store:
    """The store at `url`; its client is shared, because making one takes a third of a second."""
    place = urlsplit(url)
    store = copy.copy(_proved(_endpoint(url), place.netloc))
    store.prefix = f"{place.path.strip('/')}/"
    return store


@cache
def _proved(endpoint: str, bucket: str) -> S3Store:
    store = open_store(f"s3://{bucket}/proved?endpoint_url={endpoint}")
    assert isinstance(store, S3Store)
    check_store(store)
    return store


def killed(
    url: str,
    folder: Path,
    made: Publishers,
    *,
    size: int = 0,
    only: Callable[[int], bool] | None = None,
    **options: int,
) -> Count:
    """A publisher gets SIGKILL after each request of a publish in turn; then a reader looks, and it
    is run again.

    One other wheel is there before, which must stay. The reader goes past the proxy. `size`: bytes
    of the wheel; `only`: after which requests, all by default; `options` are the publishers'.
    """
    count = Count()
    first, second = make_wheel(folder, 1), make_wheel(folder, 2, size=size)
    with proxy(_endpoint(url)) as between:
        victim = _Victim()
        between.after = victim.at_request
        for number in itertools.count(1):
            if only is not None and not only(number):
                continue
            place = _inside(url, f"killed-{size}-{number}")
            through = _through(place, between.url)
            store = _known(place, through)
            code, output = made.run(through, first)
            assert code == 0, output
            before = len(between.requests)
            victim.expect(before + number)
            publisher = made.start(through, second, **options)
            victim.pid.put(made.pid(publisher))
            code, output = made.end(publisher)
            victim.expect(None)
            count.rounds += 1
            count.requests += len(between.requests) - before
            count.outcomes[str(code)] += 1
            assert code in {0, -signal.SIGKILL}, output
            count.read(store, f"killed after request {number}", [first.name], finished=False)
            again, output = made.run(through, second, **options)
            assert again == 0, output
            count.read(
                store, f"run again after request {number}", [first.name, second.name], finished=True
            )
            if code == 0:
                break
    return count


class _Victim:
    """Kills a publisher at one of its requests."""

    def __init__(self) -> None:
        self.pid: SimpleQueue[int] = SimpleQueue()
        self._request: int | None = None

    def expect(self, request: int | None) -> None:
        self._request = request

    def at_request(self, request: int) -> None:
        if request == self._request:
            os.kill(self.pid.get(timeout=120), signal.SIGKILL)


def parallel(
    url: str, folder: Path, made: Publishers, *, processes: int, wheels: int, kills: int = 0
) -> Count:
    """Many processes publish into one project at once; all must succeed, nothing may be lost.

    `kills`: so often each is killed at one of its requests, and started again.
    """
    count = Count(rounds=1)
    place = _inside(url, f"parallel-{processes}-{wheels}")
    check_store(open_store(place))
    all_wheels = [make_wheel(folder, number) for number in range(processes * wheels)]
    shares = [all_wheels[start::processes] for start in range(processes)]
    at = random.Random(processes)
    for left in reversed(range(kills + 1)):
        options = [{"killed_at": at.randrange(1, 8 * wheels)} if left else {} for _ in shares]
        running = [
            made.start(place, *share, **each) for share, each in zip(shares, options, strict=True)
        ]
        for number in running:
            code, output = made.end(number)
            count.outcomes[str(code)] += 1
            if code not in {0, -signal.SIGKILL if left else 0}:
                count.inconsistent.append(output)
    count.read(
        open_store(place), "in parallel", [wheel.name for wheel in all_wheels], finished=True
    )
    return count


def harmed(url: str, folder: Path, made: Publishers, *, seeds: range, at_once: int = 8) -> Count:
    """Two publishers of two wheels each behind a proxy that does harm, a schedule for each seed.

    A publisher that fails is run again, at last without harm. A wheel whose publisher ended with 0
    must be there from then on, and no page may ever lose a file.
    """
    count = Count()
    wheels = [make_wheel(folder, number) for number in range(4)]
    with ThreadPoolExecutor(at_once) as pool:
        for one in pool.map(lambda seed: _schedule(url, wheels, made, seed), seeds):
            count.rounds += 1
            count.requests += one.requests
            count.harms += one.harms
            count.outcomes += one.outcomes
            for name in ("inconsistent", "lost", "duplicates", "wiped"):
                getattr(count, name).extend(getattr(one, name))
            if count.rounds % 50 == 0:
                print(f"  so far: {count}", flush=True)
    return count


def _schedule(url: str, wheels: list[Path], made: Publishers, seed: int) -> Count:
    count = Count()
    place = _inside(url, f"harmed-{seed}")
    share = random.Random(seed).choice([0.02, 0.05, 0.1, 0.2, 0.3])
    with proxy(_endpoint(url)) as between:
        between.plan = seeded(seed, share)
        through = _through(place, between.url)
        store = _known(place, through)
        waiting = [wheels[0::2], wheels[1::2]]
        there: list[str] = []
        for run in range(RUNS + 1):
            if run == RUNS:
                between.plan = lambda _method, _path: None
            running = [(made.start(through, *group), group) for group in waiting]
            waiting = []
            for number, group in running:
                code, output = made.end(number)
                count.outcomes[str(code)] += 1
                if code == 0:
                    there += [wheel.name for wheel in group]
                    continue
                waiting.append(group)
                if code != 9 or run == RUNS:
                    count.inconsistent.append(f"seed {seed}: exit code {code}: {output}")
            count.read(store, f"seed {seed}, run {run}", there, finished=not waiting)
            if not waiting:
                break
        count.requests = len(between.requests)
        count.harms = between.harms
        count.wiped = [f"seed {seed}: {path}" for path in _shrunk(between.stored)]
    return count


def _shrunk(stored: list[tuple[str, bytes]]) -> list[str]:
    """Pages that some write left with fewer files, or projects, than the one before."""
    files: dict[str, set[str]] = {}
    found = []
    for path, body in stored:
        data = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
        page = json.loads(data)
        entries = page["files"] if "files" in page else page["projects"]
        names = {entry["filename"] if "filename" in entry else entry["name"] for entry in entries}
        if not names >= files.get(path, set()):
            found.append(path)
        files[path] = names
    return found
