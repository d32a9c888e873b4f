"""Two machines made of one: network namespaces joined by a cable, with an ssh server in each. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["INTERFACE", "Node", "can_make_nodes", "two_nodes"]

INTERFACE = "cable0"


@dataclass(frozen=True)
class Node:
    """One of the two machines."""

    namespace: str
    address: str

    def inside(self, *words: str) -> list[str]:
        """The command line that runs another one there."""
        return ["ip", "netns", "exec", self.namespace, *words]


def can_make_nodes() -> bool:
    """Whether this user and machine can."""
    tools = all(shutil.which(tool, path=_path()) for tool in ("ip", "sshd", "ssh-keygen", "pdsh"))
    if not tools or os.getuid() != 0:
        return False
    name = f"p2l-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _run("ip", "netns", "delete", name)
    return made


@contextlib.contextmanager
def two_nodes(folder: Path, *, hidden_on_second: Path | None = None) -> Iterator[tuple[list[Node], dict[str, str]]]:
    """The machines, and the environment in which pdsh and ssh reach them; `hidden_on_second` is not shared."""
    nodes = [Node(f"p2l-{os.getpid()}-{number}", f"10.77.0.{number}") for number in (1, 2)]
    servers: list[subprocess.Popen[bytes]] = []
    try:
        _join(nodes)
        key = _key(folder, "user")
        (folder / "authorized").write_text(key.with_suffix(".pub").read_text(), "utf-8")
        for node in nodes:
            hidden = hidden_on_second if node is nodes[1] else None
            servers.append(_serve(node, folder, hidden))
        options = f"-i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        _wait_for(nodes[0], [node.address for node in nodes], options.split())
        yield nodes, {"PDSH_SSH_ARGS_APPEND": options}
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        for node in nodes:
            subprocess.run(["ip", "netns", "delete", node.namespace], capture_output=True, check=False)


def _join(nodes: list[Node]) -> None:
    one, other = nodes
    for node in nodes:
        _run("ip", "netns", "add", node.namespace)
    ends = ["name", INTERFACE, "netns", one.namespace], ["name", INTERFACE, "netns", other.namespace]
    _run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
    for node in nodes:
        _run(*node.inside("ip", "address", "add", f"{node.address}/24", "dev", INTERFACE))
        for interface in ("lo", INTERFACE):
            _run(*node.inside("ip", "link", "set", interface, "up"))


def _serve(node: Node, folder: Path, hidden: Path | None) -> subprocess.Popen[bytes]:
    """An ssh server there, which lets this user in by the key of `folder` alone."""
    host_key = _key(folder, f"host-{node.address}")
    Path("/run/sshd").mkdir(exist_ok=True)
    words = [shutil.which("sshd", path=_path()) or "sshd", "-D", "-e", "-f", "/dev/null", "-h", str(host_key)]
    settings = {
        "ListenAddress": node.address,
        "AuthorizedKeysFile": str(folder / "authorized"),
        "StrictModes": "no",
        "PermitRootLogin": "prohibit-password",
        "PasswordAuthentication": "no",
        "UsePAM": "no",
        "PidFile": "none",
    }
    words += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    if hidden is not None:
        # `ip netns exec` gives a command mounts of its own.
        words = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden), *words]
    return subprocess.Popen(node.inside(*words), stderr=subprocess.DEVNULL)


def _wait_for(node: Node, addresses: list[str], options: list[str]) -> None:
    for address in addresses:
        while subprocess.run(
            node.inside("ssh", *options, address, "true"), capture_output=True, check=False
        ).returncode:
            time.sleep(0.1)


def _key(folder: Path, name: str) -> Path:
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    return folder / name


def _path() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
