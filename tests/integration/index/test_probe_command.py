"""`farm index probe`."""

import json

from farm.cli.main import main
from farm.index.backends import open_store
from farm.index.catalogue import CATALOGUE_KEY


def test_a_fit_store_is_said_to_be_fit(store_url, capsys):
    assert main(["index", "probe", "--index", store_url]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "fit to publish into"
    assert "12 writers, 3 rounds: 0 went wrong" in out
    assert list(open_store(store_url).list("")) == [CATALOGUE_KEY]


def test_one_document_of_json(store_url, capsys):
    assert main(["index", "probe", "--json", "--index", store_url]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["proved"] is True
    assert (said["bare_etags"], said["reads_first"]) == (False, False)
    assert all(finding["good"] for finding in said["findings"] if finding["needed"])
    more = {finding["what"] for finding in said["findings"] if not finding["needed"]}
    assert len(more) == (6 if store_url.startswith("s3:") else 0)


def test_a_careless_store_is_refused_with_the_evidence(s3_url, capsys, monkeypatch):
    store = open_store(s3_url)

    def forget(request, **_):
        for header in ("If-None-Match", "If-Match"):
            del request.headers[header]

    store.client.meta.events.register("before-sign.s3", forget)
    monkeypatch.setattr("farm.index.backends.open_store", lambda _url: store)
    assert main(["index", "probe", "--index", s3_url]) == 7
    out, err = capsys.readouterr()
    assert "NO   a second create is refused" in out
    assert "at most 12 were told that they had won" in err
    assert "--single-writer" in err
    assert main(["index", "probe", "--single-writer", "--index", s3_url]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "only one writer at a time may publish here"


def test_outside_a_project_the_default_folder_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["index", "probe"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{(tmp_path / 'artifacts/index').as_uri()}/"
