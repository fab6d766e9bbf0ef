"""Receives fractune's webhooks: checks that the server signed them, and drops doubles. The standard library alone.

python examples/webhook_receiver.py webhook.secret 8080
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

TOLERANCE_S = 300


def is_genuine(secret: bytes, header: str, body: bytes, now: float) -> bool:
    """Return True if the server signed this body, and not long ago. `header` is Fractune-Signature:
    `t=SECONDS,v1=HEX`.
    """
    fields = dict(field.partition("=")[::2] for field in header.split(","))
    at, found = fields.get("t", ""), fields.get("v1", "")
    expected = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    is_signed = hmac.compare_digest(expected.encode(), found.encode())
    return is_signed and abs(now - int(at)) <= TOLERANCE_S


class Receiver(BaseHTTPRequestHandler):
    secret = b""
    seen: set[str] = set()  # noqa: RUF012  - of the process; a real receiver keeps them where a restart finds them

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not is_genuine(self.secret, self.headers.get("Fractune-Signature", ""), body, time.time()):
            self.send_response(403)
        else:
            self.send_response(204)
            delivery = self.headers["Fractune-Delivery"]
            if delivery not in self.seen:  # the server repeats a call when our answer was lost
                self.seen.add(delivery)
                event = json.loads(body)
                print(event["job"], event["state"], event["shares"], flush=True)
        self.end_headers()


def main() -> None:
    Receiver.secret = Path(sys.argv[1]).read_bytes().strip()
    HTTPServer(("127.0.0.1", int(sys.argv[2])), Receiver).serve_forever()


if __name__ == "__main__":
    main()
