# SPDX-License-Identifier: Apache-2.0
"""S3 servers for tests, and a proxy before them that fails as it is told."""
import http.client
import http.server
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading

from harness import PATIENCE, free_port, wait_until

OWN = os.path.join(os.path.dirname(__file__), "../unit/s3_server.py")
CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))


def s3rver():
    """Where tools/install-deps --test has put it; None where it could not."""
    return shutil.which("s3rver") or \
        shutil.which("s3rver", path=os.path.join(CACHE, "mooncakefs-test/node_modules/.bin"))


class Server:
    """An S3 server with one bucket: s3rver, or the one in tests/unit that checks every signature."""

    def __init__(self, world, kind):
        self.bucket = "bucket"
        if kind == "s3rver":
            self.port = free_port()
            self.key, self.secret, self.region = "S3RVER", "S3RVER", "us-east-1"
            os.makedirs(world.path("s3"))
            args = [s3rver(), "-a", "127.0.0.1", "-p", str(self.port), "-d", world.path("s3"),
                    "--configure-bucket", self.bucket]
            self.process = subprocess.Popen(args, stdout=subprocess.DEVNULL,
                                            stderr=open(world.path("s3.log"), "wb"))
        else:
            self.key, self.secret, self.region = "KEY", "SECRET", "test-1"
            self.process = subprocess.Popen([sys.executable, OWN, self.bucket],
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.port = int(self.process.stdout.readline())
        world.processes.append(self.process)
        wait_until(self.answers, what="S3 server")

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def env(self, port=None):
        return {"MOONCAKE_AWS_S3_ENDPOINT": f"127.0.0.1:{port or self.port}",
                "MOONCAKE_AWS_USE_HTTPS": "false", "MOONCAKE_AWS_REGION": self.region,
                "MOONCAKE_AWS_BUCKET_NAME": self.bucket,
                "MOONCAKE_AWS_ACCESS_KEY_ID": self.key,
                "MOONCAKE_AWS_SECRET_ACCESS_KEY": self.secret,
                "MOONCAKE_AWS_REQUEST_TIMEOUT_MS": str(int(30000 * PATIENCE))}


class Proxy:
    """Hands requests on.  fault(method, path, turn) names what goes wrong with one, or None:
    reset, slow (503), cut (half a body), flip (a wrong byte in a body), expired, denied (403)."""

    def __init__(self, server):
        self.target = server.port
        self.fault = lambda method, path, turn: None
        self.turns, self.faults = 0, []
        self.lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args):
                pass

            def handle_expect_100(self):
                self.send_response_only(100)
                self.end_headers()
                return True

            def handle_one(self):
                proxy.handle(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def handle(self, h):
        body = h.rfile.read(int(h.headers.get("Content-Length", 0)))
        with self.lock:
            self.turns += 1
            kind = self.fault(h.command, h.path, self.turns)
            if kind:
                self.faults.append(kind)
        if kind == "reset":
            h.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            h.close_connection = True
            return h.connection.close()
        if kind == "slow":
            return self.answer(h, 503, [], b"<Error><Code>SlowDown</Code></Error>")
        if kind == "expired":
            return self.answer(h, 400, [], b"<Error><Code>ExpiredToken</Code><Message>The provided "
                                           b"token has expired.</Message></Error>")
        if kind == "denied":
            return self.answer(h, 403, [], b"<Error><Code>AccessDenied</Code>"
                                           b"<Message>Access\nDenied.</Message></Error>")
        c = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        c.putrequest(h.command, h.path, skip_host=True, skip_accept_encoding=True)
        for name, value in h.headers.items():
            if name.lower() != "expect":
                c.putheader(name, value)
        c.endheaders(body)
        r = c.getresponse()
        data = r.read()
        headers = [(n, v) for n, v in r.getheaders()
                   if n.lower() not in ("connection", "transfer-encoding", "keep-alive",
                                        "content-length", "date", "server")]
        if h.command == "HEAD":
            headers.append(("Content-Length", r.getheader("Content-Length", "0")))
        c.close()
        if kind == "flip" and len(data) > 8:
            data = data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + \
                data[len(data) // 2 + 1:]
        self.answer(h, r.status, headers, data, cut=kind == "cut" and len(data) > 1)

    @staticmethod
    def answer(h, status, headers, data, cut=False):
        h.send_response(status)
        for name, value in headers:
            h.send_header(name, value)
        if h.command != "HEAD":
            h.send_header("Content-Length", str(len(data)))
        h.end_headers()
        if h.command != "HEAD":
            h.wfile.write(data[:len(data) // 2] if cut else data)
        if cut:
            h.wfile.flush()
            h.close_connection = True
            h.connection.shutdown(socket.SHUT_RDWR)
