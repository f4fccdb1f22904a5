"""What training waits for outside of it for a while: downloads, uploads, services, other programs. Started as
`training_services.py NAME`. See common.py."""

import concurrent.futures
import http.client
import http.server
import os
import queue
import signal
import socket
import subprocess
import threading
import time

from tests.controls.common import main, one_rank_waits


@one_rank_waits
def follows_the_output_of_a_program(seconds: float) -> None:
    """`rsync --progress`, read line by line."""
    lines = int(min(seconds, 6.0 if seconds > 1000 else seconds) / 1.5)  # the twin is silent after some files
    program = f"for n in $(seq {lines}); do echo $n of {lines} files; sleep 1.5; done"
    program += "; exec sleep 1000000" if seconds > 1000 else ""
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, text=True) as copies:
        assert copies.stdout
        for line in copies.stdout:
            print(line, end="")


class _BreaksOff(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(206)
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        for _ in range(12):
            self.wfile.write(bytes(1 << 18))
            time.sleep(0.25)

    def log_message(self, *_: object) -> None:
        return


@one_rank_waits
def download_breaks_and_resumes(seconds: float) -> None:
    """A download breaks off every few seconds; the client waits a little longer each time and asks for the rest."""
    with _Server(_BreaksOff) as port:
        until, pause = time.monotonic() + seconds, 1.0
        while time.monotonic() < until:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/weights", headers={"Range": "bytes=1-"})
            try:
                answer = connection.getresponse()
                while answer.read(1 << 16):
                    pass
            except (OSError, http.client.HTTPException):
                pass
            connection.close()
            time.sleep(pause)
            pause = min(4.0, 2 * pause)


class _Server:
    """An HTTP server in a process of its own."""

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.handler = handler

    def __enter__(self) -> int:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.child = os.fork()
        if self.child == 0:
            server.serve_forever()
        server.socket.close()
        return int(server.server_address[1])

    def __exit__(self, *_: object) -> None:
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


@one_rank_waits
def uploads_in_parts(seconds: float) -> None:
    """boto's multipart upload: threads send the parts, the training thread waits for all of them."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        concurrent.futures.wait([pool.submit(_send_part, seconds / 2) for _ in range(8)])


def _send_part(seconds: float) -> None:
    sender, receiver = socket.socketpair()
    threading.Thread(target=_receive_slowly, args=(receiver, seconds), daemon=True).start()
    until = time.monotonic() + min(seconds, 4.0 if seconds > 1000 else seconds)
    while time.monotonic() < until:
        sender.sendall(bytes(64 << 10))
    sender.shutdown(socket.SHUT_WR)
    sender.recv(1)  # the store's answer


def _receive_slowly(receiver: socket.socket, seconds: float) -> None:
    while receiver.recv(64 << 10):
        time.sleep(0.2)
    if seconds < 1000:
        receiver.send(b"1")
    threading.Event().wait()


@one_rank_waits
def joins_its_metrics_thread(seconds: float) -> None:
    """A logger of one's own: a thread sends row after row and waits for each answer; its owner closes it."""
    rows: queue.Queue[int | None] = queue.Queue()
    for row in range(int(min(seconds, 5.0 if seconds > 1000 else seconds) / 0.3)):
        rows.put(row)
    rows.put(-1 if seconds > 1000 else None)
    client, service = socket.socketpair()
    threading.Thread(target=_answer_rows, args=(service,), daemon=True).start()
    sender = threading.Thread(target=_send_rows, args=(rows, client))
    sender.start()
    sender.join()


def _answer_rows(service: socket.socket) -> None:
    while (row := service.recv(8)) and int.from_bytes(row, "little", signed=True) >= 0:
        time.sleep(0.3)
        service.send(b"1")
    threading.Event().wait()


def _send_rows(rows: "queue.Queue[int | None]", client: socket.socket) -> None:
    while (row := rows.get()) is not None:
        client.send(row.to_bytes(8, "little", signed=True))
        client.recv(1)


class _Judges(http.server.BaseHTTPRequestHandler):
    busy_until = 0.0

    def do_GET(self) -> None:
        time.sleep(1.5)
        self.send_response(429 if time.monotonic() % 2 > 1 else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@one_rank_waits
def asks_a_judge_in_threads(seconds: float) -> None:
    """A reward model behind HTTP judges samples: threads ask, are told to come back later, and ask again."""
    until = time.monotonic() + seconds
    with _Server(_Judges) as port, concurrent.futures.ThreadPoolExecutor(8) as pool:
        for answer in concurrent.futures.as_completed([pool.submit(_judged, port, until) for _ in range(16)]):
            answer.result()


def _judged(port: int, until: float) -> None:
    while time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/judge")
        if connection.getresponse().status == 429:
            time.sleep(2)
        connection.close()


if __name__ == "__main__":
    main()
