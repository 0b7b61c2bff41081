"""The commands that make a machine a self-hosted runner of GitHub Actions, by platform; they run on that machine.

Source: GitHub Docs, "Adding self-hosted runners", "Configuring the self-hosted runner application as a service"; the
names of services are those of the runner's own `svc.sh`. Never run on Windows or a Mac.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

OWN_LABELS = frozenset({"self-hosted", "linux", "windows", "macos", "x64", "arm64"})
"""Those that the runner gives itself."""
USER = "farm-runner"
TOKEN, JIT = "ACTIONS_RUNNER_INPUT_TOKEN", "ACTIONS_RUNNER_INPUT_JITCONFIG"
"""Variables that the runner takes for `--token` and `--jitconfig` (its CommandSettings.cs), and then unsets."""
ONCE = f"{JIT}={{}} ./run.sh\n"
ONCE_WINDOWS = f"Set-Location -LiteralPath 'C:\\actions-runner'\n$env:{JIT} = '{{}}'\n./run.cmd\n"
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
    """The registration of a machine; `builds`: it takes builds."""

    name: str
    labels: tuple[str, ...]
    platform: str
    builds: bool = True

    @property
    def further_labels(self) -> str:
        return ",".join(label for label in self.labels if label.lower() not in OWN_LABELS)


def _config(program: str, what: Registration, url: str) -> str:
    """The registration, in place of a runner of that name; the token is in the environment: `ps` shows arguments."""
    return f"{program} --url {url} --name {what.name} --labels {what.further_labels} --unattended --replace"


def _systemd(what: Registration, url: str, token: str) -> str:
    # The name that svc.sh gives its unit: owner, repository and runner.
    unit = f"actions.runner.{'-'.join(url.split('/')[-2:])}.{what.name}.service"
    return f"""set -e
id {USER} >/dev/null 2>&1 || useradd --create-home{" --groups docker" if what.builds else ""} {USER}
cd /opt/actions-runner
chown -R {USER} .
{TOKEN}={token} runuser -u {USER} -- {_config("./config.sh", what, url)}
./svc.sh install {USER}
mkdir -p /etc/systemd/system/{unit}.d
cat > /etc/systemd/system/{unit}.d/farm.conf <<'END'
{UNIT}END
systemctl daemon-reload
./svc.sh start
"""


def _launchd(what: Registration, url: str, token: str) -> str:
    return f"""set -e
cd actions-runner
{TOKEN}={token} {_config("./config.sh", what, url)}
./svc.sh install
./svc.sh start
"""


def _windows(what: Registration, url: str, token: str) -> str:
    # NETWORK SERVICE: an account without a password and with few rights, which exists on every Windows.
    account = '--runasservice --windowslogonaccount "NT AUTHORITY\\NETWORK SERVICE"'
    return f"""$ErrorActionPreference = "Stop"
Set-Location -LiteralPath 'C:\\actions-runner'
$env:{TOKEN} = '{token}'
{_config("./config.cmd", what, url)} {account}
"""


@dataclass(frozen=True)
class Script:
    """How one system does it. `shell`: what runs the script there, and as whom; `once`: a runner for one job."""

    shell: str
    folder: str
    service: Callable[[Registration, str, str], str]
    once: str


SCRIPTS: Mapping[str, Script] = {
    "linux": Script("sh, as root", "/opt/actions-runner", _systemd, f"cd /opt/actions-runner\n{ONCE}"),
    "macos": Script("sh, as the user of the runner", "actions-runner", _launchd, f"cd actions-runner\n{ONCE}"),
    "windows": Script("an elevated PowerShell", "C:\\actions-runner", _windows, ONCE_WINDOWS),
}
"""By the name of the platform; `once.format(secret)` is a script."""
