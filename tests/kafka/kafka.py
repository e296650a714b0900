#!/usr/bin/env python3
"""A real Kafka for tests: one KRaft node on loopback, its jars from Maven (Java 17, mvn).

    kafka.py run -- pytest tests/kafka     start, set AGENTIC_TEST_KAFKA=host:port, run, stop
    kafka.py start DIR [--port 19092]      start and stay; prints the bootstrap address
    kafka.py kill|stop|restart DIR         SIGKILL, orderly stop, start again on the same data
    kafka.py hold DIR --for PID            start, and stop when process PID has ended, however it ended

The jars (about 44 MB) go to $AGENTIC_KAFKA_JARS, by default ~/.cache/agentic/kafka-VERSION.
A node is up in about four seconds.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r"<kafka.version>(.*)</kafka.version>", (HERE / "pom.xml").read_text())[1]
JARS = pathlib.Path(os.environ.get("AGENTIC_KAFKA_JARS", pathlib.Path.home() / f".cache/agentic/kafka-{VERSION}"))

#: Seconds without a heartbeat after which a controller of its own gives a broker up.
SESSION = 3

# Small internal topics, no start-up delays, and quick heartbeats, so that a rebalance takes
# a second and not ten (under the KIP-848 protocol the broker sets the heartbeat interval).
PROPERTIES = """
process.roles={roles}
node.id={number}
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners={listeners}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=300
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
transaction.max.timeout.ms=900000
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.backoff.ms=1000
log.retention.check.interval.ms=5000
{extra}
"""


def jars():
    """Fetch the jars once; return the class path."""
    if not any(JARS.glob("kafka_2.13-*.jar")):
        if not shutil.which("mvn") or not shutil.which("java"):
            raise SystemExit("kafka.py needs java 17 and mvn on the PATH")
        staging = JARS.with_name(JARS.name + f".{os.getpid()}")
        subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(HERE / "pom.xml"),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={staging}",
            ],
            check=True,
            stdout=sys.stderr,
        )
        JARS.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # another process may have been first
            staging.rename(JARS)
    return f"{JARS}/*"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def alive(pid):
    """Tell whether a process runs; one that ended and waits for its parent does not."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = pathlib.Path(f"/proc/{pid}/stat")  # Linux alone has it; elsewhere the signal must do
    with contextlib.suppress(OSError):
        return state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return True


class Server:
    """A Kafka process with its data in `directory`; survives kill() and start() again."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.config = self.directory / "server.properties"
        self.pid_file = self.directory / "pid"

    def format(self, roles, number, controller, listeners, cluster, extra):
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            PROPERTIES.format(
                roles=roles,
                number=number,
                controller=controller,
                listeners=listeners,
                data=self.directory / "data",
                extra=extra,
            )
        )
        quorum = "--standalone" if "controller" in roles else "--no-initial-controllers"
        # One word, since an id may begin with a dash.
        self._java("kafka.tools.StorageTool", "format", quorum, f"-t={cluster}", "-c", str(self.config))

    @property
    def address(self):
        return re.search(r"^listeners=\w+://([\d.:]+)", self.config.read_text(), re.M)[1]

    def _java(self, *args):
        done = subprocess.run(["java", "-cp", jars(), *args], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)

    def start(self, timeout=60):
        with open(self.directory / "kafka.log", "ab") as log:
            process = subprocess.Popen(
                [
                    "java",
                    "-Xms256m",
                    "-Xmx768m",
                    "-XX:+UseSerialGC",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-cp",
                    jars(),
                    "kafka.Kafka",
                    str(self.config),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid_file.write_text(str(process.pid))
        host, port = self.address.split(":")
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return self
            time.sleep(0.1)
        raise SystemExit((self.directory / "kafka.log").read_text()[-4000:])

    def signal(self, number, timeout=30):
        """Send a signal that ends the broker, and wait for its end."""
        pid = int(self.pid_file.read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not alive(pid):
                return
            time.sleep(0.05)
        raise SystemExit(f"broker {pid} did not end in {timeout} s")

    def freeze(self):
        os.kill(int(self.pid_file.read_text()), signal.SIGSTOP)

    def thaw(self):
        os.kill(int(self.pid_file.read_text()), signal.SIGCONT)

    def kill(self):
        self.signal(signal.SIGKILL)

    def stop(self):
        self.signal(signal.SIGTERM)


class Node(Server):
    """One broker.

    With `apart` its controller is a process of its own, which goes on while the broker is down: `crash` needs it.
    """

    def __init__(self, directory, port=None, extra="", apart=False):
        super().__init__(directory)
        self.controller = None
        if not self.config.exists():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            quorum = free_port()
            broker, controller = f"PLAINTEXT://127.0.0.1:{port or free_port()}", f"CONTROLLER://127.0.0.1:{quorum}"
            if apart:
                extra += f"\nbroker.session.timeout.ms={SESSION}000\nbroker.heartbeat.interval.ms=500"
                Server(self.directory / "controller").format("controller", 2, quorum, controller, cluster, extra)
                self.format("broker", 1, quorum, broker, cluster, extra)
            else:
                self.format("broker,controller", 1, quorum, f"{broker},{controller}", cluster, extra)
        if (self.directory / "controller").exists():
            self.controller = Server(self.directory / "controller")
        self.bootstrap = self.address

    def start(self, timeout=60):
        if self.controller is not None and not self.controller.pid_file.exists():
            self.controller.start(timeout)
        return super().start(timeout)

    def crash(self):
        """Kill the broker, wait until its controller has given it up, and start it again.

        A broker that comes back sooner, as one with its controller inside always does, believes that it
        still leads its partitions until it is fenced. The marker of a transaction whose commit was under
        way is then taken for that of a deleted partition and left out (KAFKA-20734, in Kafka 4.3.1):
        no client can end that transaction any more.
        """
        self.kill()
        time.sleep(SESSION + 1)
        self.start()

    def end(self):
        """Kill all there is."""
        self.kill()
        if self.controller is not None:
            self.controller.kill()


def held(directory, pid, options=(), timeout=600, apart=False):
    """Have a keeper hold a broker for process `pid`, if none does yet; return its address.

    The time is for a first start, which fetches the jars.
    """
    directory = pathlib.Path(directory)
    ready = directory / "ready"
    if not ready.exists():
        log = directory.with_name(f"{directory.name}.log")
        further = [part for option in options for part in ("--set", option)] + ["--apart"] * apart
        command = [sys.executable, str(HERE / "kafka.py"), "hold", str(directory), "--for", str(pid), *further]
        with open(log, "ab") as out:
            keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        deadline = time.monotonic() + timeout
        while not (ready.exists() and ready.read_text()):
            if keeper.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
    return ready.read_text()


def release(directory):
    """Have the keeper of a broker stop it and remove its data."""
    (pathlib.Path(directory) / "ready").unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "start", "stop", "kill", "restart", "hold"])
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--port", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further broker property")
    parser.add_argument("--apart", action="store_true", help="give the broker's controller a process of its own")
    parser.add_argument("--for", type=int, dest="pid", help="with hold: the process whose end is awaited")
    argv = sys.argv[1:]
    command = []
    if "--" in argv:
        argv, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    options = parser.parse_args(argv)
    if options.command == "run":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the broker goes with us
        with tempfile.TemporaryDirectory() as directory:
            node = Node(directory, options.port, "\n".join(options.set)).start()
            try:
                sys.exit(subprocess.run(command, env={**os.environ, "AGENTIC_TEST_KAFKA": node.bootstrap}).returncode)
            finally:
                node.kill()
    node = Node(options.directory, options.port, "\n".join(options.set), options.apart)
    if options.command == "hold":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        ready = node.directory / "ready"
        try:
            node.start()
            ready.write_text(node.bootstrap)
            while alive(options.pid) and ready.exists():
                time.sleep(0.5)
        finally:
            node.end()
            shutil.rmtree(node.directory, ignore_errors=True)
        return
    if options.command in ("stop", "restart"):
        node.stop()
    if options.command == "kill":
        node.kill()
    if options.command in ("start", "restart"):
        print(node.start().bootstrap)


if __name__ == "__main__":
    main()
