"""A store whose operations are counted, interrupted and interleaved; and what an index shows."""

import json

from farm.index.layout import html_key, json_key

GROUP = "sm35-avx"
FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
OTHER = "torch-2.0.1+cu118.sm35.avx-py3-none-any.whl"


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def nothing(number, name):
    pass


class Recorder:
    """A store that calls back before and after each operation; `calls` counts them."""

    def __init__(self, store, before=nothing, after=nothing):
        self._store, self._before, self._after = store, before, after
        self.calls = 0

    def _call(self, name, arguments, options):
        self.calls += 1
        number = self.calls
        self._before(number, name)
        result = getattr(self._store, name)(*arguments, **options)
        self._after(number, name)
        return result

    def get(self, *arguments, **options):
        return self._call("get", arguments, options)

    def stat(self, *arguments, **options):
        return self._call("stat", arguments, options)

    def create(self, *arguments, **options):
        return self._call("create", arguments, options)

    def replace(self, *arguments, **options):
        return self._call("replace", arguments, options)

    def list(self, *arguments, **options):
        return self._call("list", arguments, options)

    def discard(self, *arguments, **options):
        return self._call("discard", arguments, options)

    def __getattr__(self, name):
        """What costs no request: urls, predictions of tags, traits."""
        return getattr(self._store, name)


def content(store):
    return {key: store.get(key).data for key in store.list("")}


def listed(store, project="canary"):
    """File names on the JSON page and the HTML page: two lists that should be one."""
    page = json.loads(store.get(json_key(GROUP, project)).data)
    files = [file["filename"] for file in page["files"]]
    text = store.get(html_key(GROUP, project)).data.decode()
    assert [name for name in files if f">{name}</a>" in text] == files
    assert text.count(f">{project}-") == len(files)
    return files


def kill_at(wanted):
    def kill(number, name):
        if number == wanted:
            raise Killed

    return kill
