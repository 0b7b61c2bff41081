"""The commands that make a machine a self-hosted runner of GitHub Actions, by platform; they run on that machine.

Source: GitHub Docs, "Adding self-hosted runners", "Configuring the self-hosted runner application as a service"; the
names of services are those of the runner's own `svc.sh`. Never run on Windows or a Mac.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

OWN_LABELS = frozenset({"self-hosted", "linux", "windows", "macos", "x64", "arm64"})
"""Those that the runner gives itself."""
UNIT = """[Service]
Restart=always
RestartSec=30
NoNewPrivileges=yes
ProtectSystem=full
CPUWeight=500
"""
"""CPUWeight keeps the listener alive under a compile: one that is silent for ten minutes is taken for lost."""


@dataclass(frozen=True)
class Registration:
    """The registration of a machine. `folder` holds the unpacked runner there; `builds`: it takes builds."""

    name: str
    labels: tuple[str, ...]
    platform: str
    folder: str
    user: str = "farm-runner"
    builds: bool = True
    replace: bool = False

    @property
    def further_labels(self) -> str:
        return ",".join(label for label in self.labels if label.lower() not in OWN_LABELS)


def _config(program: str, what: Registration, url: str, token: str) -> str:
    words = [program, "--url", url, "--token", token, "--name", what.name, "--labels", what.further_labels]
    return " ".join([*words, "--unattended", *(["--replace"] if what.replace else [])])


def _systemd(what: Registration, url: str, token: str) -> str:
    user, groups = shlex.quote(what.user), " --groups docker" if what.builds else ""
    # The name that svc.sh gives its unit: owner, repository and runner.
    unit = f"actions.runner.{'-'.join(url.split('/')[-2:])}.{what.name}.service"
    return f"""set -e
id {user} >/dev/null 2>&1 || useradd --create-home{groups} {user}
cd {shlex.quote(what.folder)}
chown -R {user} .
runuser -u {user} -- {_config("./config.sh", what, url, token)}
./svc.sh install {user}
mkdir -p /etc/systemd/system/{unit}.d
cat > /etc/systemd/system/{unit}.d/farm.conf <<'END'
{UNIT}END
systemctl daemon-reload
./svc.sh start
"""


def _launchd(what: Registration, url: str, token: str) -> str:
    return f"""set -e
cd {shlex.quote(what.folder)}
{_config("./config.sh", what, url, token)}
./svc.sh install
./svc.sh start
"""


def _windows(what: Registration, url: str, token: str) -> str:
    # NETWORK SERVICE: an account without a password and with few rights, which exists on every Windows.
    account = '--runasservice --windowslogonaccount "NT AUTHORITY\\NETWORK SERVICE"'
    return f"""$ErrorActionPreference = "Stop"
Set-Location -LiteralPath '{_quoted(what.folder)}'
{_config("./config.cmd", what, url, token)} {account}
"""


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _shell_once(what: Registration, secret: str) -> str:
    return f"set -e\ncd {shlex.quote(what.folder)}\n./run.sh --jitconfig {secret}\n"


def _windows_once(what: Registration, secret: str) -> str:
    return f"Set-Location -LiteralPath '{_quoted(what.folder)}'\n./run.cmd --jitconfig {secret}\n"


@dataclass(frozen=True)
class Script:
    """How one system does it. `shell`: what runs the script there, and as whom."""

    shell: str
    folder: str
    service: Callable[[Registration, str, str], str]
    once: Callable[[Registration, str], str]


SCRIPTS: Mapping[str, Script] = {
    "linux": Script("sh, as root", "/opt/actions-runner", _systemd, _shell_once),
    "macos": Script("sh, as the user of the runner", "actions-runner", _launchd, _shell_once),
    "windows": Script("an elevated PowerShell", "C:\\actions-runner", _windows, _windows_once),
}
"""By the name of the platform."""
