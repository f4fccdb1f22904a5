"""NCCL's RAS service as its protocol is described: `python ras_server.py PORT KIND REPORT`. Says "ready" when it
listens. With NCCL_RAS_ADDR in its environment it plays a rank whose process offers the service."""

import pathlib
import socket
import sys


def serve(listener: socket.socket, kind: str, report: bytes) -> None:
    """Answer clients for ever, one after the other."""
    while True:
        connection, _ = listener.accept()
        with connection:
            answer(connection, kind, report)


def answer(connection: socket.socket, kind: str, report: bytes) -> None:
    if kind == "silent":
        connection.recv(1 << 16)
        connection.recv(1 << 16)  # until the client has had enough
        return
    for line in connection.makefile("r"):
        command = line.strip()
        if kind == "http":
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        if command.startswith("CLIENT PROTOCOL"):
            connection.sendall(b"SERVER PROTOCOL 2\n")
        elif command.startswith("TIMEOUT"):
            connection.sendall(b"OK\n")
        elif command.startswith("SET FORMAT"):
            connection.sendall(b"ERROR: Unknown command\n" if kind == "text" else b"OK\n")
        elif command == "VERBOSE STATUS":
            connection.sendall(report)
            return
        else:
            connection.sendall(b"ERROR: Unknown command\n")
            return


def main() -> None:
    port, kind, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with socket.create_server(("127.0.0.1", port)) as listener:
        print(f"ready {listener.getsockname()[1]}", flush=True)
        serve(listener, kind, pathlib.Path(path).read_bytes() if path else b"")


if __name__ == "__main__":
    main()
