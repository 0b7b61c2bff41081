"""Projects of uv, Poetry, PDM and pip-tools, each in its newest release, by the tables of
docs/how-to/install-from-an-index.md.
"""

import re
import subprocess
import sys

from tests.servers.process import ROOT, environment

REQUIREMENTS = {"uv": "uv", "poetry": "poetry", "pdm": "pdm[locked]", "pip-tools": "pip-tools"}
"""PDM's newest dependencies do not always fit it."""
LOCKS = {
    "uv": "uv.lock",
    "poetry": "poetry.lock",
    "pdm": "pdm.lock",
    "pip-tools": "requirements.txt",
}


def table(client):
    """The table of pyproject.toml that the page shows for a client."""
    text = (ROOT / "docs/how-to/install-from-an-index.md").read_text()
    [found] = re.findall(
        rf"^```toml\n# {client}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL | re.IGNORECASE
    )
    return found


class Project:
    def __init__(self, client, folder):
        self.client, self.folder = client, folder
        self.programs = environment(client, REQUIREMENTS[client])

    def run(self, program, *arguments):
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder.parent),
            "NO_PROXY": "*",
            "PDM_CHECK_UPDATE": "0",
        }
        env |= {
            "POETRY_VIRTUALENVS_IN_PROJECT": "true",
            "PDM_CACHE_DIR": str(self.folder / "cache"),
        }
        env |= {
            "POETRY_CACHE_DIR": str(self.folder / "cache"),
            "UV_CACHE_DIR": str(self.folder / "cache"),
        }
        env |= {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
        command = [self.programs / program, *arguments]
        return subprocess.run(
            command,
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def lock(self, source, wanted="canary", change=lambda text: text):
        """Locks a project that needs `wanted` from this source alone; the finished process."""
        text = "" if self.client == "pip-tools" else change(table(self.client))
        text = text.replace("https://wheels.example.org/whl/sm35-avx/simple/", source)
        self.folder.mkdir(exist_ok=True)
        (self.folder / LOCKS[self.client]).unlink(missing_ok=True)
        (self.folder / "pyproject.toml").write_text(
            '[project]\nname = "user"\nversion = "1"\nrequires-python = ">=3.11,<3.15"\n'
            f'dependencies = ["{wanted}"]\n{text}'
        )
        if self.client == "pip-tools":
            return self.run(
                "pip-compile", "--generate-hashes", "--index-url", source, "pyproject.toml"
            )
        return self.run(self.client, "lock")

    def installed(self):
        """What was installed by the lock."""
        place = ".venv/lib/python3/site-packages"
        if self.client == "pip-tools":  # the lock names the index, and has hashes
            done = self.run(
                "python", "-m", "pip", "install", "-r", LOCKS[self.client], "--target", place
            )
        else:
            done = self.run(self.client, "sync")
        assert done.returncode == 0, done.stdout + done.stderr
        [found] = self.folder.glob(".venv/lib/python*/site-packages/canary/__init__.py")
        return found.read_text()
