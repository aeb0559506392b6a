"""An ``nvidia-cuda-mps-control`` without a GPU; the tests copy it under that name.

With ``-d`` it is the daemon: it listens in the pipe directory, has a server process as soon as a
client comes (see fake_mps.h), and knows the commands that gpuqueue uses. Else it hands on one
command and prints the answer. The folder FAKE_MPS has ``log``, a JSON line for each start and
command, and may have ``behaviour.json``, read at each command, whose lists are of beginnings of
commands::

    hang     never answers, nor anything else from then on
    sick     GPUs whose daemons hang so at any command (a list of UUIDs)
    silent   does nothing and answers with nothing
    answer   a table of what is answered instead
    fault    the server is in fault
    keeps    terminate_client does not let go
    late     -d comes back, and the daemon never listens
    deaf     it ignores SIGTERM and `quit`
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
NOTES = os.environ["FAKE_MPS"]
SOCKET = f"{PIPE}/control"


def behaviour():
    try:
        with open(f"{NOTES}/behaviour.json") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def note(command):
    line = {
        "command": command,
        "pid": os.getpid(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "pipe": PIPE,
        "names": sorted(os.environ),
    }
    with open(f"{NOTES}/log", "a") as file:
        file.write(json.dumps(line) + "\n")


def matches(command, words):
    return any(command.startswith(word) for word in words)


class Daemon:
    def __init__(self):
        self.default = 100.0
        self.server = None
        self.percent = 100.0
        self.clients = {}

    def serve(self):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(SOCKET)
        with open(f"{PIPE}/nvidia-cuda-mps-control.pid", "w") as file:
            file.write(str(os.getpid()))
        listener.listen(64)
        self.poll = selectors.DefaultSelector()
        self.poll.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in self.poll.select():
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    self.poll.register(connection, selectors.EVENT_READ, "new")
                else:
                    self.hear(key.fileobj, key.data)

    def hear(self, connection, data):
        try:
            text = connection.recv(4096).decode()
        except OSError:
            text = ""
        if not text:
            self.poll.unregister(connection)
            connection.close()
            self.clients.pop(data, None)
            return
        command = text.strip()
        if command.startswith("client "):
            pid = int(command.split()[1])
            self.begin()
            self.clients[pid] = connection
            self.poll.modify(connection, selectors.EVENT_READ, pid)
            connection.sendall(f"{self.percent}\n".encode())
            return
        answer = self.answer(command)
        connection.sendall(answer.encode())
        self.poll.unregister(connection)
        connection.close()
        if command.startswith("quit") and not behaviour().get("deaf"):
            if self.server:
                self.server.kill()
                self.server.wait()
            os.unlink(SOCKET)
            raise SystemExit

    def begin(self):
        if self.server is None:
            words = ["nvidia-cuda-mps-server", "-IS", "-c", "import time; time.sleep(3600)"]
            self.server = subprocess.Popen(words, executable=sys.executable)
            self.percent = self.default

    def answer(self, command):
        now = behaviour()
        sick = os.environ.get("CUDA_VISIBLE_DEVICES") in now.get("sick", ())
        if sick or matches(command, now.get("hang", ())):
            while True:
                time.sleep(3600)
        if matches(command, now.get("silent", ())):
            return ""
        for word, text in now.get("answer", {}).items():
            if command.startswith(word):
                return text
        name, *words = command.split()
        server = self.server.pid if self.server else None
        if name == "get_server_list":
            return f"{server}\n" if server else ""
        if name == "get_client_list":
            return "".join(f"{pid}\n" for pid in self.clients) if int(words[0]) == server else ""
        if name == "get_server_status":
            return "FAULT\n" if now.get("fault") else "ACTIVE\n"
        if name == "get_default_active_thread_percentage":
            return f"{self.default}\n"
        if name == "set_default_active_thread_percentage":
            self.default = float(words[0])
            return ""
        if name == "get_active_thread_percentage":
            return f"{self.percent}\n"
        if name == "set_active_thread_percentage":
            self.percent = float(words[1])
            return ""
        if name == "terminate_client" and not now.get("keeps"):
            connection = self.clients.pop(int(words[1]), None)
            if connection:
                self.poll.unregister(connection)
                connection.close()
        return ""


def start():
    note("-d")
    if os.path.exists(SOCKET):
        print("An instance of this daemon is already running")
        raise SystemExit(1)
    if os.fork():
        raise SystemExit
    os.setsid()
    now = behaviour()
    if now.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if now.get("late"):
        with open(f"{os.environ['CUDA_MPS_LOG_DIRECTORY']}/control.log", "w") as file:
            file.write("it waits\n")
    while now.get("late"):
        time.sleep(3600)
    Daemon().serve()


def hand_on():
    command = sys.stdin.readline().strip()
    note(command)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(SOCKET)
    except OSError:
        print("Cannot find MPS control daemon process")
        raise SystemExit(1) from None
    connection.sendall(f"{command}\n".encode())
    while piece := connection.recv(4096):
        sys.stdout.write(piece.decode())


if __name__ == "__main__":
    start() if "-d" in sys.argv else hand_on()
