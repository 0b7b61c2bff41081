"""A machine that is reached by OpenSSH: a server on loopback, and `ssh` with a configuration of its
own.
"""

import subprocess
from pathlib import Path

SERVER = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PermitRootLogin forced-commands-only
StrictModes no
UsePAM no
PidFile {folder}/pid
"""
CLIENT = """Host login
    HostName 127.0.0.1
    Port {port}
    User root
    IdentityFile {folder}/key
    UserKnownHostsFile {folder}/known
"""


def serve_ssh(folder: Path, port: int, login: str) -> Path:
    """Starts the server; returns a folder for PATH, whose `ssh` reaches it as `login`. Needs root.

    `login`: a script of sh, which a connection gets instead of a shell; SSH_ORIGINAL_COMMAND is
    what was asked for. The server is found by the folder's path in its command.
    """
    folder.mkdir(parents=True)
    for name in ("host", "key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    (folder / "bin").mkdir()
    files = {
        "server": SERVER.format(folder=folder, port=port),
        "client": CLIENT.format(folder=folder, port=port),
        "login": f"#!/bin/sh\n{login}\n",
        "bin/ssh": f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/client "$@"\n',
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "authorized").write_text(
        f'command="{folder}/login" {(folder / "key.pub").read_text()}'
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    Path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(["/usr/sbin/sshd", "-f", folder / "server"], check=True)
    return folder / "bin"
