#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A small S3 server in memory that checks every signature and body, and fails as it is told.

s3_server.py BUCKET [--flaky]: prints its port; --flaky answers some requests with 503, drops some
connections, and cuts some bodies short.  Keys are KEY / SECRET, the region is test-1.  The third
part of a name that ends in "refused" is refused; the first two of one that ends in "together" wait
until both are there.  _uploads is how many uploads are open, _peak how many parts were under way at
once.
"""
import hashlib
import hmac
import http.server
import socket
import sys
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

BUCKET = sys.argv[1]
FLAKY = "--flaky" in sys.argv
PAGE = 3
objects, uploads, lock = {}, {}, threading.Lock()
count = 0
under_way = peak = 0
together = threading.Barrier(2)


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def quote(text):
    return urllib.parse.quote(text, safe="-._~")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=(), cut=False):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(n == "Content-Length" for n, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:len(body) // 2] if cut else body)
        if cut:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def error(self, status, code, message=""):
        self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code>"
                            f"<Message>{escape(message)}</Message></Error>".encode())

    def wrong_signature(self, path, query, body):
        """What is wrong with the request, by AWS's Signature Version 4; None when nothing is."""
        given = self.headers.get("Authorization", "")
        if not given.startswith("AWS4-HMAC-SHA256 "):
            return "no signature"
        parts = dict(p.strip().split("=", 1) for p in given[17:].split(","))
        key, date, region, service, end = parts["Credential"].split("/")
        if (key, region, service, end) != ("KEY", "test-1", "s3", "aws4_request"):
            return "credential " + parts["Credential"]
        names = parts["SignedHeaders"].split(";")
        for needed in ("host", "x-amz-content-sha256", "x-amz-date"):
            if needed not in names:
                return needed + " is not signed"
        digest = self.headers["x-amz-content-sha256"]
        if digest != hashlib.sha256(body).hexdigest():
            return "the body is another"
        pairs = sorted((quote(k), quote(v)) for k, v in
                       urllib.parse.parse_qsl(query, keep_blank_values=True))
        canonical = "\n".join(
            [self.command, quote(urllib.parse.unquote(path)).replace("%2F", "/"),
             "&".join(f"{k}={v}" for k, v in pairs)] +
            [f"{n}:{' '.join(self.headers[n].split())}" for n in names] +
            ["", parts["SignedHeaders"], digest])
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"],
                          "/".join([date, region, service, end]),
                          hashlib.sha256(canonical.encode()).hexdigest()])
        secret = b"AWS4SECRET"
        for step in (date, region, service, end):
            secret = sign(secret, step)
        return None if sign(secret, text).hex() == parts["Signature"] else "signature mismatch"

    def handle_one(self):
        global count
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        with lock:
            count += 1
            turn = count
        if FLAKY and turn % 5 == 2:
            return self.error(503, "SlowDown")
        if FLAKY and turn % 11 == 3:
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        wrong = self.wrong_signature(path, query, body)
        if wrong:
            return self.error(403, "SignatureDoesNotMatch", wrong)
        bucket, _, key = urllib.parse.unquote(path)[1:].partition("/")
        if bucket != BUCKET:
            return self.error(404, "NoSuchBucket")
        values = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        if "partNumber" in values:
            return self.part(key, values, body)
        with lock:
            return self.serve(key, values, body, cut=FLAKY and turn % 7 == 6)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    def part(self, key, values, body):
        global under_way, peak
        number = int(values["partNumber"])
        with lock:
            under_way += 1
            peak = max(peak, under_way)
        if key.endswith("together") and number <= 2:
            together.wait(60)
        with lock:
            under_way -= 1
            if key.endswith("refused") and number == 3:
                return self.error(403, "AccessDenied", "no more\nof this")
            return self.serve(key, values, body, False)

    def serve(self, key, values, body, cut):
        if not key:
            return self.list_uploads(values) if "uploads" in values else self.list(values)
        if self.command == "PUT" and "uploadId" in values:
            if values["uploadId"] not in uploads:
                return self.error(404, "NoSuchUpload")
            uploads[values["uploadId"]][1][int(values["partNumber"])] = body
            return self.answer(200, headers=[("ETag", f'"{hashlib.md5(body).hexdigest()}"')])
        if self.command == "PUT":
            objects[key] = body
            return self.answer(200)
        if self.command == "POST" and "uploads" in values:
            upload = f"u+/{count}"
            uploads[upload] = (key, {})
            return self.answer(200, f"<R><UploadId>{upload}</UploadId></R>".encode())
        if self.command == "POST":
            if values["uploadId"] not in uploads:
                return self.error(404, "NoSuchUpload")
            parts = uploads.pop(values["uploadId"])[1]
            if any(f'<PartNumber>{n}</PartNumber><ETag>"{hashlib.md5(p).hexdigest()}"' not in
                   body.decode() for n, p in parts.items()):
                return self.answer(200, b"<Error><Code>InvalidPart</Code></Error>")
            objects[key] = b"".join(parts[n] for n in sorted(parts))
            if FLAKY:  # done, but nobody hears of it
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            return self.answer(200, b"<CompleteMultipartUploadResult/>")
        if self.command == "DELETE":
            if "uploadId" in values:
                uploads.pop(values["uploadId"], None)
            else:
                objects.pop(key, None)
            return self.answer(204)
        return self.read(key, cut)

    def read(self, key, cut):
        if key in ("_uploads", "_peak"):
            return self.answer(200, str(len(uploads) if key == "_uploads" else peak).encode())
        if key not in objects:
            return self.error(404, "NoSuchKey")
        data = objects[key]
        date = [("Last-Modified", "Tue, 01 Dec 2026 06:52:03 GMT")]
        if self.command == "HEAD":
            return self.answer(200, headers=date + [("Content-Length", str(len(data)))])
        wanted = self.headers.get("Range")
        if not wanted:
            return self.answer(200, data, date, cut)
        first, last = (int(v) for v in wanted[6:].split("-"))
        if first >= len(data):
            return self.error(416, "InvalidRange")
        return self.answer(206, data[first:last + 1], date, cut)

    def list(self, values):
        prefix, after = values.get("prefix", ""), values.get("continuation-token", "")
        names = sorted((k for k in objects if k.startswith(prefix) and k > after),
                       key=lambda k: k.encode())
        page = names[:PAGE]
        items = "".join(f"<Contents><Key>{escape(k)}</Key>"
                        f"<LastModified>2026-12-01T06:52:03.000Z</LastModified>"
                        f"<Size>{len(objects[k])}</Size></Contents>" for k in page)
        more = len(names) > PAGE
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self.answer(200, f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{str(more).lower()}"
                         f"</IsTruncated>{items}{token}</ListBucketResult>".encode())

    def list_uploads(self, values):
        """One upload a page, begun just now."""
        after = (values.get("key-marker", ""), values.get("upload-id-marker", ""))
        found = sorted((k, u) for u, (k, _) in uploads.items()
                       if k.startswith(values.get("prefix", "")) and (k, u) > after)
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        items = "".join(f"<Upload><Key>{escape(k)}</Key><UploadId>{u}</UploadId>"
                        f"<Initiated>{now}</Initiated></Upload>" for k, u in found[:1])
        more = len(found) > 1
        marks = f"<NextKeyMarker>{escape(found[0][0])}</NextKeyMarker>" \
                f"<NextUploadIdMarker>{found[0][1]}</NextUploadIdMarker>" if more else ""
        self.answer(200, f"<ListMultipartUploadsResult><IsTruncated>{str(more).lower()}"
                         f"</IsTruncated>{marks}{items}</ListMultipartUploadsResult>".encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
