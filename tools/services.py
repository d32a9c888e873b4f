"""PostgreSQL and Redis of Debian's packages, in a folder: `python -m tools.services start|stop|run|check [FOLDER]`.

Programs that are installed are used; others are unpacked from Debian's packages into the folder, which needs no root.
Data, sockets and logs are in the folder too, and both listen on the loopback interface alone. `start` prints what to
set, so that tests find them: P2L_TEST_POSTGRES and P2L_TEST_REDIS. `check` ends with 1 where none run on the usual
ports.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_PACKAGES = ("postgresql-15", "libpq5", "libllvm14", "redis-server", "redis-tools", "liblua5.1-0", "libjemalloc2")
_PATIENCE = 30.0  # seconds until a server answers
_SHARED = "shared_buffers=32MB"


class ServiceError(Exception):
    """A server that cannot be started; the text says why."""


class Servers:
    """One PostgreSQL and one Redis in a folder."""

    def __init__(self, folder: Path, *, postgres_port: int = 0, redis_port: int = 0) -> None:
        """Start nothing yet; a port of 0 is one that is free."""
        self.folder = folder.resolve()
        self.postgres_port = postgres_port or free_port()
        self.redis_port = redis_port or free_port()
        self.redis: subprocess.Popen[bytes] | None = None

    @property
    def _data(self) -> Path:
        return self.folder / "postgres" / "data"

    @property
    def postgres_url(self) -> str:
        """The URL of the database `test`."""
        return f"postgresql://postgres@127.0.0.1:{self.postgres_port}/test"

    @property
    def redis_url(self) -> str:
        """The URL of the Redis."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    def start(self) -> None:
        """Start both; raise ServiceError if one does not come up."""
        self.start_postgres()
        self.start_redis()

    def start_postgres(self) -> None:
        """Create the cluster where there is none, and start its server; nothing of it may run."""
        data = self._data
        if not (data / "PG_VERSION").exists():
            data.mkdir(parents=True, exist_ok=True)
            self._give_away(data)
            self._give_away(data.parent)
            flags = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync"]
            self._run([program("initdb", self.folder), "-D", data, *flags])
        options = f"-p {self.postgres_port} -k {data.parent} -c listen_addresses=127.0.0.1 -c {_SHARED}"
        log = data.parent / "server.log"
        for lock in (data / "postmaster.pid", *data.parent.glob(".s.PGSQL.*.lock")):
            lock.unlink(missing_ok=True)  # of a server that was killed
        self._run([program("pg_ctl", self.folder), "-D", data, "-l", log, "-w", "-o", options, "start"])
        with contextlib.suppress(ServiceError):  # it is there already, or this is a standby
            self.query("CREATE DATABASE test")

    def query(self, statement: str) -> None:
        """Run a statement as the server's owner."""
        where = ["-h", "127.0.0.1", "-p", str(self.postgres_port), "-U", "postgres"]
        self._run([program("psql", self.folder), *where, "-c", statement])

    def start_redis(self) -> None:
        """Start a Redis that keeps nothing on the disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = ["--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        words = [str(program("redis-server", self.folder)), *flags, "--dir", str(self.folder)]
        with (self.folder / "redis.log").open("ab") as log:
            self.redis = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment(self.folder), start_new_session=True
            )
        (self.folder / "redis.pid").write_text(str(self.redis.pid), encoding="utf-8")
        _wait_for(self.redis_port, "Redis")

    def copied(self, folder: Path) -> Servers:
        """Return a second PostgreSQL that copies this one as a hot standby, started; it has no Redis."""
        replica = Servers(folder)
        home = replica._data.parent
        home.mkdir(parents=True, exist_ok=True)
        self._give_away(home)
        source = f"postgresql://postgres@127.0.0.1:{self.postgres_port}/"
        copy: list[str | Path] = [
            program("pg_basebackup", self.folder),
            "-d",
            source,
            "-D",
            replica._data,
            "-R",
            "-X",
            "stream",
        ]
        replica._run([*copy, "--checkpoint=fast", "--no-sync"])
        replica.start_postgres()
        return replica

    def promote(self) -> None:
        """Let a standby take writes, in the state in which it is."""
        self._run([program("pg_ctl", self.folder), "-D", self._data, "-w", "promote"])

    def postgres_pid(self) -> int:
        """Return the process of the server."""
        return int((self._data / "postmaster.pid").read_text(encoding="utf-8").split()[0])

    def kill_postgres(self) -> None:
        """Kill the server and all its processes at once, as a power cut would."""
        pid = self.postgres_pid()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        for each in (pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        _wait_until_gone([pid, *map(int, children)])

    def kill_redis(self) -> None:
        """Kill Redis, which forgets everything."""
        if self.redis is not None:
            self.redis.kill()
            self.redis.wait()

    def stop(self) -> None:
        """Stop both, also those of an earlier start in this folder."""
        data = self._data
        if (data / "postmaster.pid").exists():
            with contextlib.suppress(ServiceError):
                self._run([program("pg_ctl", self.folder), "-D", data, "-m", "immediate", "-w", "stop"])
        pid = self.folder / "redis.pid"
        if self.redis is not None:
            self.kill_redis()
        elif pid.exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGTERM)
        pid.unlink(missing_ok=True)

    def _give_away(self, folder: Path) -> None:
        """Give a folder to the user that runs the server: PostgreSQL refuses to run as root."""
        owner = _owner()
        if owner is None:
            return
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        temporary = Path(tempfile.gettempdir()).resolve()
        for parent in folder.parents:
            if parent.stat().st_mode & 0o001:
                continue
            if temporary not in parent.parents:
                raise ServiceError(
                    f"{parent}: {owner.pw_name}, who runs PostgreSQL, cannot enter it; choose another folder"
                )
            parent.chmod(parent.stat().st_mode | 0o011)

    def _run(self, words: Sequence[str | Path]) -> None:
        owner = _owner()
        user, group = (None, None) if owner is None else (owner.pw_uid, owner.pw_gid)
        # Without a terminal's pipes: the server would hold them open, and whoever waits for their end.
        place = self._data.parent
        output = place / "command.log"
        with output.open("wb") as log:
            done = subprocess.run(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.folder),
                cwd=place,
                check=False,
                user=user,
                group=group,
            )
        if done.returncode:
            raise ServiceError(f"{Path(words[0]).name}: {output.read_text(encoding='utf-8', errors='replace').strip()}")


def _owner() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServiceError("there is no user 'postgres' or 'nobody' to run PostgreSQL, which refuses to run as root")


def program(name: str, folder: Path, packages: Sequence[str] = _PACKAGES) -> Path:
    """Return a program that is installed, else one unpacked from Debian's packages into the folder; or ServiceError."""
    for root in (Path("/"), folder / "packages"):
        versions = sorted(root.glob("usr/lib/postgresql/*/bin"), key=lambda path: float(path.parent.name), reverse=True)
        for place in (*versions, root / "usr" / "bin", root / "usr" / "sbin"):
            if (place / name).is_file():
                return place / name
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    _unpack(folder / "packages", packages)
    return program(name, folder, packages)


def _unpack(target: Path, packages: Sequence[str]) -> None:
    if target.exists():
        raise ServiceError(f"{target}: lacks what was to be unpacked there; remove it to try again")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ServiceError(f"{packages[0]} is not installed, and this is not Debian; install it")
    downloads = target.with_name("downloads")
    downloads.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["apt-get", "download", *packages], cwd=downloads, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServiceError(f"apt-get download: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, target], check=True)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables with which a program that was unpacked into the folder finds its libraries."""
    libraries = [str(path) for path in (folder / "packages" / "usr" / "lib").glob("*-linux-gnu")]
    return {**os.environ, "LC_ALL": "C", **({"LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else {})}


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, name: str) -> None:
    late = time.monotonic() + _PATIENCE
    while time.monotonic() < late:
        if _answers(port):
            return
        time.sleep(0.02)
    raise ServiceError(f"{name} does not answer on port {port}")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _wait_until_gone(pids: Sequence[int]) -> None:
    late = time.monotonic() + _PATIENCE
    while any(_runs(pid) for pid in pids) and time.monotonic() < late:
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Start servers, stop them, run a command beside them, or look whether there are any."""
    flags = argparse.ArgumentParser(prog="python -m tools.services", description=__doc__)
    flags.add_argument("action", choices=["start", "stop", "run", "check"])
    flags.add_argument("folder", type=Path, nargs="?", default=Path(".services"))
    flags.add_argument("command", nargs=argparse.REMAINDER, help="of `run`")
    args = flags.parse_args(argv)
    if args.action == "check":
        return 0 if all(_answers(port) for port in (5432, 6379)) else 1
    ports = {"postgres_port": 5432, "redis_port": 6379} if args.action != "run" else {}
    servers = Servers(args.folder, **ports)
    try:
        if args.action == "stop":
            servers.stop()
            return 0
        servers.start()
    except ServiceError as error:
        print(error, file=sys.stderr)
        return 2
    variables = {"P2L_TEST_POSTGRES": servers.postgres_url, "P2L_TEST_REDIS": servers.redis_url}
    if args.action == "start":
        print("\n".join(f"export {name}={url}" for name, url in variables.items()))
        return 0
    try:
        return subprocess.run(args.command, env={**os.environ, **variables}, check=False).returncode
    finally:
        servers.stop()


if __name__ == "__main__":
    sys.exit(main())
